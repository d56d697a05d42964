// What a lookup was given is written before its backward pass, which reads it
// again. Gradients of the new indices came back without a word, where one
// device refuses.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/sharded.h"
#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace lookup_input_changed_test {

struct Inputs {
  at::Tensor indices;
  at::Tensor offsets;
  at::Tensor weights;
};

using Make = std::function<Inputs()>;
using LookUp = std::function<at::Tensor(const Inputs&)>;

// Backward refuses, or it read a copy: then the gradient is the right one.
// Returns whether it refused.
bool refuses_or_is_right(
    const ts::DTensor& table,
    const Make& make,
    const LookUp& look_up,
    at::Tensor Inputs::*written) {
  const auto gradient = [&](at::Tensor Inputs::*changed) {
    Inputs inputs = make();
    const auto loss = look_up(inputs).sum();
    if (changed != nullptr) {
      (inputs.*changed).zero_();
    }
    const auto grad =
        torch::autograd::grad({loss}, {static_cast<at::Tensor>(table)})[0];
    return ts::DTensor(grad).full_tensor();
  };
  const auto expected = gradient(nullptr);
  try {
    EXPECT_TRUE(gradient(written).equal(expected));
    return false;
  } catch (const c10::Error& error) {
    EXPECT_NE(
        std::string(error.what_without_backtrace())
            .find("modified by an inplace operation"),
        std::string::npos)
        << error.what_without_backtrace();
    return true;
  }
}

const std::map<const char*, at::Tensor Inputs::*> kWritten{
    {"indices", &Inputs::indices},
    {"offsets", &Inputs::offsets},
    {"weights", &Inputs::weights}};

at::Tensor bags_of(const at::Tensor& table, const Inputs& inputs) {
  return std::get<0>(at::embedding_bag(
      table,
      inputs.indices,
      inputs.offsets,
      /*scale_grad_by_freq=*/false,
      /*mode=*/0,
      /*sparse=*/false,
      inputs.weights));
}

TEST(LookupInputChanged, OfDistributedTensors) {
  ts::testing::with_mesh({2}, [&](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto placed = [&](const at::Tensor& t, const ts::Placement& p) {
      return ts::distribute_tensor(t, mesh, {p});
    };
    const auto make = [&] {
      return Inputs{
          placed(torch::tensor({1, 5, 0, 5}), ts::Shard(0)),
          placed(torch::tensor({0, 2}), ts::Replicate()),
          placed(torch::tensor({1.F, 2.F, 3.F, 4.F}), ts::Shard(0))};
    };
    for (const ts::Placement& of_table :
         {ts::Placement(ts::Replicate()),
          ts::Placement(ts::Shard(0)),
          ts::Placement(ts::Shard(1))}) {
      SCOPED_TRACE(ts::to_string({of_table}));
      const auto table = placed(torch::randn({6, 4}), of_table);
      table.requires_grad_();
      for (const auto strategy :
           {ts::LookupStrategy::Gather, ts::LookupStrategy::Exchange}) {
        const ts::EmbeddingScope scope({.strategy = strategy});
        // Elsewhere indices or rows were gathered: copies.
        const bool reads_again =
            of_table.is_replicate() ||
            (strategy == ts::LookupStrategy::Exchange && of_table.is_shard(0));
        const bool refuses = refuses_or_is_right(
            table,
            make,
            [&](const Inputs& in) { return at::embedding(table, in.indices); },
            &Inputs::indices);
        EXPECT_TRUE(refuses || !reads_again);
        for (const auto& [name, member] : kWritten) {
          SCOPED_TRACE(name);
          const bool refused = refuses_or_is_right(
              table,
              make,
              [&](const Inputs& in) { return bags_of(table, in); },
              member);
          EXPECT_TRUE(refused || !reads_again);
        }
      }
    }
  });
}

TEST(LookupInputChanged, OfShardedTensors) {
  ts::testing::with_mesh({1}, [&](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto table = ts::ShardedTensor::from_local_shards(
                           {torch::randn({6, 4})},
                           {6, 4},
                           ts::ChunkShardingSpec{0, {ts::ShardPlacement(0)}})
                           .requires_grad_();
    const auto make = [] {
      return Inputs{
          torch::tensor({1, 5, 0, 5}),
          torch::tensor({0, 2, 4}),
          torch::tensor({1.F, 2.F, 3.F, 4.F})};
    };
    EXPECT_TRUE(refuses_or_is_right(
        table.dtensor(),
        make,
        [&](const Inputs& in) {
          return ts::sharded::embedding(in.indices, table);
        },
        &Inputs::indices));
    EXPECT_TRUE(refuses_or_is_right(
        table.dtensor(),
        make,
        [&](const Inputs& in) {
          return ts::sharded::embedding_bag(in.indices.view({2, 2}), table);
        },
        &Inputs::indices));
    for (const auto& [name, member] : kWritten) {
      SCOPED_TRACE(name);
      EXPECT_TRUE(refuses_or_is_right(
          table.dtensor(),
          make,
          [&](const Inputs& in) {
            return ts::sharded::embedding_bag(
                in.indices,
                table,
                in.offsets,
                {.mode = "sum",
                 .per_sample_weights = in.weights,
                 .include_last_offset = true});
          },
          member));
    }
  });
}

}  // namespace lookup_input_changed_test
