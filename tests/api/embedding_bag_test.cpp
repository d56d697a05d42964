// Bags of rows on distributed tensors, through the functions that users call,
// beside the same on one device: every mode, every layout of table and indices.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;
namespace F = torch::nn::functional;
using ts::Replicate;
using ts::Shard;
using ts::testing::difference;
using ts::testing::outside;
using ts::testing::throws_saying;
using ts::testing::with_mesh;

namespace {

enum class Mode : uint8_t { Sum, Mean, Max };

struct BagCase {
  Mode mode = Mode::Sum;
  bool by_offsets = true;  // 1-d input; otherwise 2-d
  bool weighted = false;
  bool sparse = false;
  bool include_last_offset = false;
  int64_t bags = 5;
  std::optional<int64_t> padding_idx = std::nullopt;

  std::string str() const {
    std::ostringstream out;
    out << "mode " << static_cast<int>(mode)
        << (by_offsets ? ", offsets" : ", 2-d")
        << (weighted ? ", weighted" : "") << (sparse ? ", sparse" : "")
        << (include_last_offset ? ", include_last_offset" : "") << ", padding "
        << padding_idx.value_or(-99);
    return out.str();
  }

  F::EmbeddingBagFuncOptions options(
      const at::Tensor& offsets, const at::Tensor& weights) const {
    F::EmbeddingBagFuncOptions options;
    switch (mode) {
      case Mode::Sum:
        options.mode(torch::kSum);
        break;
      case Mode::Mean:
        options.mode(torch::kMean);
        break;
      case Mode::Max:
        options.mode(torch::kMax);
        break;
    }
    if (by_offsets) {
      options.offsets(offsets);
    }
    if (weighted) {
      options.per_sample_weights(weights);
    }
    return options.sparse(sparse)
        .include_last_offset(include_last_offset)
        .padding_idx(padding_idx);
  }
};

struct BagData {
  at::Tensor weight, indices, offsets, factors, grad;
};

BagData data_of(const BagCase& c) {
  const auto generator = at::detail::createCPUGenerator(3);
  const auto real = at::TensorOptions(at::kDouble);
  BagData data;
  data.weight = torch::randn({10, 6}, generator, real);
  // The second bag is empty, and bags are cut in the middle by most meshes.
  data.indices = c.by_offsets
                     ? torch::randint(0, 10, {17}, generator, at::kLong)
                     : torch::randint(0, 10, {c.bags, 3}, generator, at::kLong);
  data.offsets = c.include_last_offset
                     ? torch::tensor({0, 3, 3, 9, 12, 17}, at::kLong)
                     : torch::tensor({0, 3, 3, 9, 12}, at::kLong);
  data.factors = torch::randn(data.indices.sizes(), generator, real);
  data.grad = torch::randn({c.bags, 6}, generator, real);
  return data;
}

ts::DTensor placed(
    const at::Tensor& value,
    const ts::DeviceMesh& mesh,
    ts::PlacementsRef placements = {}) {
  return ts::distribute_tensor(
      value, mesh, placements, {.same_on_all_ranks = true});
}

at::Tensor leaf(const at::Tensor& value) {
  return value.clone().requires_grad_();
}

void expect_as_on_one_device(
    const BagCase& c,
    const ts::DeviceMesh& mesh,
    const ts::Placements& table,
    const ts::Placements& batch) {
  SCOPED_TRACE(
      c.str() + ", table " + ts::to_string(table) + ", batch " +
      ts::to_string(batch));
  const auto data = data_of(c);
  const auto plain = leaf(data.weight);
  const auto plain_factors = leaf(data.factors);
  const auto expected = F::embedding_bag(
      data.indices, plain, c.options(data.offsets, plain_factors));
  (expected * data.grad).sum().backward();

  const auto weight = placed(leaf(data.weight), mesh, table);
  const auto factors = placed(leaf(data.factors), mesh, batch);
  const auto bags = F::embedding_bag(
      placed(data.indices, mesh, batch),
      weight,
      c.options(placed(data.offsets, mesh), factors));
  (bags * placed(data.grad, mesh)).sum().backward();
  EXPECT_EQ(ts::DTensor(weight.grad()).placements(), ts::PlacementsRef(table));

  const auto full = ts::DTensor(bags.detach()).full_tensor();
  const auto grad = ts::DTensor(weight.grad()).full_tensor();
  const auto factors_grad =
      c.weighted ? ts::DTensor(factors.grad()).full_tensor() : at::Tensor();
  if (outside(mesh)) {
    return;
  }
  EXPECT_EQ(difference(full, expected.detach()), "");
  const auto wanted =
      plain.grad().is_sparse() ? plain.grad().to_dense() : plain.grad();
  EXPECT_EQ(difference(grad, wanted), "");
  if (c.weighted) {
    EXPECT_EQ(difference(factors_grad, plain_factors.grad()), "");
  }
}

std::vector<BagCase> cases() {
  std::vector<BagCase> all;
  for (const Mode mode : {Mode::Sum, Mode::Mean, Mode::Max}) {
    for (const bool by_offsets : {true, false}) {
      const int64_t bags = by_offsets ? 5 : 8;
      all.push_back({.mode = mode, .by_offsets = by_offsets, .bags = bags});
      all.push_back(
          {.mode = mode,
           .by_offsets = by_offsets,
           .bags = bags,
           .padding_idx = 2});
      if (mode != Mode::Max) {
        all.push_back(
            {.mode = mode,
             .by_offsets = by_offsets,
             .sparse = true,
             .bags = bags});
      }
    }
    all.push_back({.mode = mode, .include_last_offset = true});
  }
  all.push_back({.weighted = true});
  all.push_back({.by_offsets = false, .weighted = true, .bags = 8});
  all.push_back({.weighted = true, .padding_idx = -3});
  // More ranks than bags.
  all.push_back({.by_offsets = false, .bags = 2});
  return all;
}

TEST(EmbeddingBag, EveryLayoutOnOneMeshDimension) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    with_mesh({ranks}, [](const ts::DeviceMesh& mesh) {
      for (const auto& c : cases()) {
        for (const auto& table : {Replicate(), Shard(0), Shard(1)}) {
          for (const auto& batch : {Replicate(), Shard(0)}) {
            expect_as_on_one_device(c, mesh, {table}, {batch});
          }
        }
      }
    });
  }
}

TEST(EmbeddingBag, EveryLayoutOnTwo) {
  with_mesh({2, 2}, [](const ts::DeviceMesh& mesh) {
    for (const auto& c : cases()) {
      for (const auto& table : ts::testing::layouts(mesh, 2)) {
        for (const auto& batch : ts::testing::layouts(mesh, 1)) {
          expect_as_on_one_device(c, mesh, table, batch);
        }
      }
    }
  });
}

TEST(EmbeddingBag, ReplicatedIndicesSendNothing) {
  with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const BagCase c;
    const auto data = data_of(c);
    for (const auto& table : {Replicate(), Shard(0), Shard(1)}) {
      const auto weight = placed(leaf(data.weight), mesh, {table});
      const ts::CommDebugMode comm;
      const auto bags = F::embedding_bag(
          placed(data.indices, mesh),
          weight,
          c.options(placed(data.offsets, mesh), {}));
      bags.backward(placed(data.grad, mesh));
      EXPECT_EQ(comm.get_total_counts(), 0) << comm;
    }
  });
}

// Batches of whole bags over a replicated table stay where they are.
TEST(EmbeddingBag, BatchesOfWholeBagsAreNotGathered) {
  with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const BagCase c{.by_offsets = false, .bags = 8};
    const auto data = data_of(c);
    const ts::CommDebugMode comm;
    const auto bags = F::embedding_bag(
        placed(data.indices, mesh, {Shard(0)}),
        placed(data.weight, mesh),
        c.options({}, {}));
    EXPECT_EQ(ts::DTensor(bags).placements()[0], Shard(0));
    const std::map<std::string, int64_t> agreed{{"agree", 1}};
    EXPECT_EQ(comm.get_comm_counts(), agreed) << comm;
  });
}

TEST(EmbeddingBag, ModuleTrainsAsOnOneDevice) {
  with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto data = data_of({});
    const auto options =
        torch::nn::EmbeddingBagOptions(10, 6).mode(torch::kMean).padding_idx(1);
    const auto step = [&](torch::nn::EmbeddingBag& module,
                          const at::Tensor& indices,
                          const at::Tensor& offsets) {
      torch::optim::SGD optimizer(module->parameters(), 0.1);
      module->forward(indices, offsets).pow(2).sum().backward();
      optimizer.step();
    };
    torch::nn::EmbeddingBag plain(options);
    torch::nn::EmbeddingBag sharded(options);
    {
      const torch::NoGradGuard no_grad;
      plain->weight.copy_(data.weight);
      sharded->weight.copy_(data.weight);
    }
    ts::distribute_(sharded->weight, mesh, {Shard(0)});
    step(plain, data.indices, data.offsets);
    step(sharded, placed(data.indices, mesh), placed(data.offsets, mesh));
    const auto full = ts::DTensor(sharded->weight.detach()).full_tensor();
    if (!outside(mesh)) {
      EXPECT_EQ(difference(full, plain->weight.detach()), "");
    }
  });
}

TEST(EmbeddingBag, Refusals) {
  with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto data = data_of({});
    const auto weight = placed(data.weight, mesh, {Shard(0)});
    const auto indices = placed(data.indices, mesh);
    const auto offsets = placed(data.offsets, mesh);
    throws_saying<c10::NotImplementedError>(
        "scale_grad_by_freq is not supported",
        [&] { at::embedding_bag(weight, indices, offsets, true); });
    throws_saying<c10::IndexError>(
        "[embedding_bag] index 10 is outside the table of 10 rows",
        [&] { at::embedding_bag(weight, indices * 0 + 10, offsets); });
    throws_saying<c10::Error>("is a plain tensor of shape", [&] {
      at::embedding_bag(weight, data.indices, offsets);
    });
    throws_saying<c10::Error>("is a plain tensor of shape", [&] {
      at::embedding_bag(data.weight, data.indices, offsets);
    });
  });
}

}  // namespace
