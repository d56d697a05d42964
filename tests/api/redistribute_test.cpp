// Any layout to any other, forward and backward, and what it costs.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;
using ts::testing::for_each_mesh;
using ts::testing::layouts;
using ts::testing::outside;
using ts::testing::throws_saying;

namespace redistribute_test {

at::Tensor numbered(at::IntArrayRef sizes) {
  return torch::arange(1, c10::multiply_integers(sizes) + 1, torch::kFloat)
      .view(sizes);
}

TEST(Redistribute, EveryLayoutToEveryOther) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    // 5 rows: uneven over 2, 3 and 4 ranks; 3 columns: an empty shard over 4.
    const auto x = numbered({5, 3});
    const int64_t ndim = mesh.ndim() > 2 ? 1 : 2;
    for (const auto& from : layouts(mesh, ndim)) {
      const auto d =
          ts::distribute_tensor(x, mesh, from, {.same_on_all_ranks = true});
      for (const auto& to : layouts(mesh, ndim)) {
        SCOPED_TRACE(ts::to_string(from) + " to " + ts::to_string(to));
        const auto moved = d.redistribute(to);
        EXPECT_EQ(moved.placements(), ts::PlacementsRef(to));
        const auto wanted =
            ts::distribute_tensor(x, mesh, to, {.same_on_all_ranks = true});
        const auto shards = moved.shards();
        const auto wanted_shards = wanted.shards();
        ASSERT_EQ(shards.size(), wanted_shards.size());
        for (size_t i = 0; i < shards.size(); ++i) {
          EXPECT_TRUE(shards[i].equal(wanted_shards[i]))
              << shards[i] << wanted_shards[i];
        }
      }
    }
  });
}

TEST(Redistribute, PendingReductionsOfEveryKind) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 2) {
      return;
    }
    const auto x = numbered({5, 3});
    for (const auto op :
         {ts::ReduceOp::Sum,
          ts::ReduceOp::Avg,
          ts::ReduceOp::Product,
          ts::ReduceOp::Min,
          ts::ReduceOp::Max}) {
      for (const auto& from : layouts(mesh, 2, op)) {
        const auto d = ts::testing::laid_out(x, mesh, from, 1);
        for (const auto& to : layouts(mesh, 2)) {
          SCOPED_TRACE(ts::to_string(from) + " to " + ts::to_string(to));
          const auto moved = d.redistribute(to);
          const auto full = moved.full_tensor();
          if (!outside(mesh)) {
            EXPECT_TRUE(full.allclose(x, 1e-4, 1e-4)) << full;
          }
        }
      }
    }
  });
}

TEST(Redistribute, OneCollectiveWhereOneDoes) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() != 1 || mesh.size() == 1 || outside(mesh)) {
      return;
    }
    const auto x = numbered({6, 4});
    const auto count = [&](const ts::Placement& from,
                           const ts::Placement& to,
                           const char* collective) {
      SCOPED_TRACE(from.str() + " to " + to.str());
      const auto d = ts::testing::laid_out(x, mesh, {from}, 1);
      ts::CommDebugMode comm;
      d.redistribute({to});
      EXPECT_EQ(comm.get_total_counts(), collective == nullptr ? 0 : 1);
      if (collective != nullptr) {
        EXPECT_EQ(comm.get_comm_counts().at(collective), 1);
      }
    };
    count(ts::Shard(0), ts::Replicate(), "all_gather");
    count(ts::Shard(0), ts::Shard(1), "all_to_all");
    count(ts::Partial(), ts::Replicate(), "all_reduce");
    count(ts::Partial(), ts::Shard(1), "reduce_scatter");
    count(ts::Replicate(), ts::Shard(0), nullptr);
    count(ts::Shard(0), ts::Shard(0), nullptr);
  });
}

TEST(Redistribute, GradientsComeBackInTheOldLayout) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 2) {
      return;
    }
    const auto x = numbered({5, 4});
    const auto weights = torch::sin(x);
    for (const auto& from : layouts(mesh, 2, ts::ReduceOp::Sum)) {
      for (const auto& to : layouts(mesh, 2)) {
        SCOPED_TRACE(ts::to_string(from) + " to " + ts::to_string(to));
        auto d = ts::DTensor(
            ts::testing::laid_out(x, mesh, from, 1).detach().requires_grad_());
        const auto w = ts::distribute_tensor(
            weights, mesh, to, {.same_on_all_ranks = true});
        (d.redistribute(to) * w).sum().backward();
        const ts::DTensor grad(d.grad());
        for (size_t m = 0; m < from.size(); ++m) {
          EXPECT_EQ(
              grad.placements()[m],
              from[m].is_partial() ? ts::Replicate() : from[m]);
        }
        const auto full = grad.full_tensor();
        if (!outside(mesh)) {
          EXPECT_TRUE(full.allclose(weights)) << full;
        }
      }
    }
  });
}

TEST(Redistribute, ResultsOwnTheirMemory) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.size() == 1) {
      return;
    }
    const auto d = ts::distribute_tensor(numbered({4, 4}), mesh);
    const ts::Placements rows(mesh.ndim(), ts::Shard(0));
    d.redistribute(rows).zero_();
    const auto full = d.full_tensor();
    if (!outside(mesh)) {
      EXPECT_TRUE(full.equal(numbered({4, 4})));
    }
  });
}

TEST(Redistribute, RefusesWhatDoesNotFit) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto d = ts::distribute_tensor(numbered({4, 4}), mesh);
    const ts::Placements pending(mesh.ndim(), ts::Partial());
    const ts::Placements beyond(mesh.ndim(), ts::Shard(4));
    const ts::Placements many(mesh.ndim() + 1, ts::Shard(0));
    throws_saying<c10::ValueError>(
        "a pending reduction only comes out of an op",
        [&] { d.redistribute(pending); });
    throws_saying<c10::ValueError>(
        "[redistribute]", [&] { d.redistribute(beyond); });
    throws_saying<c10::ValueError>(
        "must have the same length", [&] { d.redistribute(many); });
    if (mesh.size() > 1) {
      const ts::DeviceMesh other("cpu", mesh.all_ranks().slice(0, 1));
      throws_saying<c10::NotImplementedError>(
          "cross-mesh", [&] { d.redistribute(other, {ts::Shard(0)}); });
    }
  });
}

TEST(FullTensor, OfAPendingSumIsOneAllReduce) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() != 1 || mesh.size() == 1 || outside(mesh)) {
      return;
    }
    const auto d =
        ts::testing::laid_out(numbered({4}), mesh, {ts::Partial()}, 1);
    ts::CommDebugMode comm;
    EXPECT_TRUE(d.full_tensor().allclose(numbered({4})));
    EXPECT_EQ(comm.get_total_counts(), 1);
    EXPECT_EQ(comm.get_comm_counts().at("all_reduce"), 1);
  });
}

TEST(FullTensor, GradientPlacementsMayBeGiven) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() != 1 || outside(mesh)) {
      return;
    }
    // Every rank computes a term of the loss: the gradient is their sum.
    auto d = ts::distribute_tensor(
        numbered({4}).requires_grad_(), mesh, {ts::Shard(0)});
    const ts::Placements terms{ts::Partial()};
    d.full_tensor(terms).sum().backward();
    const auto grad = ts::DTensor(d.grad()).full_tensor();
    const auto wanted = static_cast<double>(mesh.size());
    EXPECT_TRUE(grad.equal(torch::full({4}, wanted))) << grad;
  });
}

}  // namespace redistribute_test
