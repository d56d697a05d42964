// Programs that write through views of sharded dimensions, which used to be
// refused, and what they send.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/debug.h"
#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace writes_through_views_test {

using torch::indexing::Slice;

void on_ranks(
    at::IntArrayRef shape,
    const std::function<void(const ts::DeviceMesh&)>& body) {
  ts::testing::with_mesh(shape, body);
}

void expect_equal(const at::Tensor& given, const at::Tensor& expected) {
  const ts::DTensor tensor(given.detach());
  const auto whole = tensor.full_tensor();
  EXPECT_TRUE(
      ts::testing::outside(tensor.mesh()) || whole.equal(expected.detach()))
      << given.sizes() << " " << ts::to_string(tensor.placements()) << "\n"
      << whole << "\nexpected\n"
      << expected;
}

struct Write {
  const char* name;
  std::function<void(at::Tensor)> write;
};

// Every rank knows what to write: nothing is sent.
TEST(WritesThroughViews, SendNothingThatEveryRankKnows) {
  const std::vector<Write> writes = {
      {"x[2:5] = 0", [](at::Tensor x) { x.index_put_({Slice(2, 5)}, 0); }},
      {"x[3] = 9", [](at::Tensor x) { x.index_put_({3}, 9); }},
      {"x[::2] += 1", [](at::Tensor x) { x.slice(0, 0, 8, 2).add_(1); }},
      {"x[2:2] = 5", [](at::Tensor x) { x.index_put_({Slice(2, 2)}, 5); }},
      {"x[1, 2:4] *= 2",
       [](at::Tensor x) { x.select(0, 1).slice(0, 2, 4).mul_(2); }},
      {"x.narrow(0, 2, 3).fill_(8)",
       [](at::Tensor x) { x.narrow(0, 2, 3).fill_(8); }},
      {"x.fill_diagonal_(0)", [](at::Tensor x) { x.fill_diagonal_(0); }},
      {"x.diagonal().mul_(3)", [](at::Tensor x) { x.diagonal().mul_(3); }},
      {"x.view(48)[3:7].zero_()",
       [](at::Tensor x) { x.view({48}).slice(0, 3, 7).zero_(); }},
      {"x.t()[1:3].clamp_(max=5)",
       [](at::Tensor x) { x.t().slice(0, 1, 3).clamp_max_(5); }},
      {"x[[1, -2]] = 5",
       [](at::Tensor x) {
         auto ids = torch::tensor({1, -2});
         if (ts::is_dtensor(x)) {
           ids = ts::distribute_tensor(ids, ts::DTensor(x).mesh());
         }
         x.index_put_({ids}, torch::full({}, 5.0));
       }},
  };
  on_ranks({4}, [&](const ts::DeviceMesh& mesh) {
    for (const auto& [name, write] : writes) {
      for (const auto& layout :
           {ts::Placement(ts::Replicate()),
            ts::Placement(ts::Shard(0)),
            ts::Placement(ts::Shard(1))}) {
        SCOPED_TRACE(std::string(name) + " on " + layout.str());
        auto plain = torch::arange(48.0).view({8, 6});
        at::Tensor x = ts::distribute_tensor(plain.clone(), mesh, {layout});
        // The ids that one of them is given are sent to all ranks.
        const int64_t given =
            std::string_view(name) == "x[[1, -2]] = 5" ? 16 : 0;
        ts::CommDebugMode comm;
        write(x);
        EXPECT_LE(comm.get_total_bytes(), given * 4);
        write(plain);
        expect_equal(x, plain);
      }
    }
  });
}

// The values of a step go to those that hold their places; the cache stays
// where it is.
TEST(WritesThroughViews, ACacheOfKeysIsNotGathered) {
  constexpr int64_t kBatch = 4;
  constexpr int64_t kHeads = 4;
  constexpr int64_t kSteps = 8;
  constexpr int64_t kWidth = 3;
  constexpr int64_t kStepBytes = kBatch * kHeads * kWidth * 4;
  on_ranks({4}, [&](const ts::DeviceMesh& mesh) {
    for (const int64_t dim : {0, 1, 2}) {  // batch, heads, sequence
      for (const auto& layout :
           {ts::Placement(ts::Replicate()), ts::Placement(ts::Shard(1))}) {
        SCOPED_TRACE(std::to_string(dim) + " by " + layout.str());
        auto plain = torch::zeros({kBatch, kHeads, kSteps, kWidth});
        const auto cache =
            ts::zeros(plain.sizes(), mesh, {ts::Shard(dim)}).to(at::kFloat);
        for (int64_t t = 0; t < kSteps; ++t) {
          const auto key = torch::randn({kBatch, kHeads, kWidth});
          torch::manual_seed(t);
          const auto step = torch::randn({kBatch, kHeads, kWidth});
          const auto given = ts::distribute_tensor(step, mesh, {layout});
          plain.select(2, t).copy_(step);
          ts::CommDebugMode comm;
          cache.select(2, t).copy_(given);
          const bool stays = layout.is_replicate() || dim == 1;
          EXPECT_LE(comm.get_total_bytes(), stays ? 0 : kStepBytes);
        }
        expect_equal(cache, plain);
      }
    }
  });
}

TEST(WritesThroughViews, TablesWithAPaddingRowAreReset) {
  for (const auto& shape : {std::vector<int64_t>{4}, {2, 2}}) {
    on_ranks(shape, [](const ts::DeviceMesh& mesh) {
      for (int64_t dim = -1; dim < 2; ++dim) {
        ts::Placements layout(mesh.ndim(), ts::Replicate());
        if (dim >= 0) {
          layout[mesh.ndim() - 1] = ts::Shard(dim);
        }
        SCOPED_TRACE(ts::to_string(layout));
        torch::nn::Embedding table(
            torch::nn::EmbeddingOptions(10, 4).padding_idx(3));
        ts::distribute_(table->weight, mesh, layout);
        {
          const torch::NoGradGuard no_grad;
          table->weight.fill_(1);
        }
        table->reset_parameters();
        const auto whole = ts::DTensor(table->weight.detach()).full_tensor();
        if (!ts::testing::outside(mesh)) {
          EXPECT_TRUE(whole[3].eq(0).all().item<bool>());
          EXPECT_FALSE(whole[2].eq(0).any().item<bool>());
        }
      }
    });
  }
}

// Gradients that are copied views of temporaries.
TEST(WritesThroughViews, GradientsAreAccumulatedAndClipped) {
  on_ranks({4}, [](const ts::DeviceMesh& mesh) {
    const auto run = [](at::Tensor x, const at::Tensor& y) {
      x.requires_grad_();
      const auto loss = at::maximum(x.unsqueeze(0), y).pow(2).sum();
      loss.backward({}, /*retain_graph=*/true);
      loss.backward();
      torch::nn::utils::clip_grad_value_({x}, 0.5);
      return x.grad();
    };
    const auto expected = run(torch::full({}, 0.3), torch::arange(4.0) - 2);
    const auto given = run(
        ts::distribute_tensor(torch::full({}, 0.3), mesh),
        ts::distribute_tensor(torch::arange(4.0) - 2, mesh, {ts::Shard(0)}));
    expect_equal(given, expected);
  });
}

TEST(WritesThroughViews, OverlapsAreRefusedAsOnOneDevice) {
  on_ranks({4}, [](const ts::DeviceMesh& mesh) {
    const auto plain = torch::arange(8.0);
    const auto x = ts::distribute_tensor(plain.clone(), mesh, {ts::Shard(0)});
    for (const at::Tensor& one : std::vector<at::Tensor>{plain, x}) {
      EXPECT_THROW(one.slice(0, 1).copy_(one.slice(0, 0, 7)), c10::Error);
      EXPECT_THROW(
          one.unsqueeze(0).expand({3, 8}).slice(1, 2, 5).add_(1), c10::Error);
      one.slice(0, 1).copy_(one.slice(0, 0, 7).clone());
      one.slice(0, 0, 3).copy_(one.slice(0, 4, 7));
    }
    expect_equal(x, plain);
  });
}

// Ranks outside the mesh hold nothing, send nothing and do not wait.
TEST(WritesThroughViews, OnPartOfTheWorld) {
  on_ranks({2}, [](const ts::DeviceMesh& mesh) {
    auto plain = torch::arange(10.0).view({5, 2});
    const auto x = ts::distribute_tensor(plain.clone(), mesh, {ts::Shard(0)});
    const auto rows = ts::distribute_tensor(
        torch::arange(6.0).view({3, 2}), mesh, {ts::Shard(0)});
    x.slice(0, 1, 4).copy_(rows);
    x.slice(0, 2, 5).mul_(3);
    plain.slice(0, 1, 4).copy_(torch::arange(6.0).view({3, 2}));
    plain.slice(0, 2, 5).mul_(3);
    expect_equal(x, plain);
  });
}

}  // namespace writes_through_views_test
