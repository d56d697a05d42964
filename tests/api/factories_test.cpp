// Factories and random numbers.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;
using ts::testing::for_each_mesh;
using ts::testing::outside;
using ts::testing::throws_saying;

namespace factories_test {

at::Tensor full_or(const ts::DTensor& tensor, const at::Tensor& otherwise) {
  const auto full = tensor.full_tensor();
  return outside(tensor.mesh()) ? otherwise : full;
}

TEST(Factories, FillEveryLayoutAndSendNothing) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    for (const auto& placement :
         {ts::Replicate(), ts::Shard(0), ts::Shard(-1)}) {
      const ts::Placements layout(mesh.ndim(), placement);
      ts::CommDebugMode comm;
      const auto zeros = ts::zeros({5, 3}, mesh, layout);
      const auto ones = ts::ones({5, 3}, mesh, layout, torch::kInt64);
      const auto sevens = ts::full({5, 3}, 7, mesh, layout, torch::kDouble);
      EXPECT_EQ(ts::empty({5, 3}, mesh, layout).sizes(), zeros.sizes());
      EXPECT_EQ(comm.get_total_counts(), 0);
      const auto wanted = torch::zeros({5, 3});
      EXPECT_TRUE(full_or(zeros, wanted).equal(wanted));
      EXPECT_TRUE(full_or(ones, torch::ones({5, 3}, torch::kInt64))
                      .equal(torch::ones({5, 3}, torch::kInt64)));
      EXPECT_TRUE(full_or(sevens, torch::full({5, 3}, 7, torch::kDouble))
                      .equal(torch::full({5, 3}, 7, torch::kDouble)));
      for (const auto& shard : zeros.shards()) {
        EXPECT_LE(shard.numel(), 15);
      }
    }
  });
}

TEST(Factories, RequiresGradAndErrors) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto x =
        ts::ones({2}, mesh, {}, torch::TensorOptions().requires_grad(true));
    EXPECT_TRUE(x.requires_grad() && x.is_leaf());
    const ts::Placements pending(mesh.ndim(), ts::Partial());
    throws_saying<c10::ValueError>("[zeros] expected Shard or Replicate", [&] {
      ts::zeros({2}, mesh, pending);
    });
    throws_saying<c10::ValueError>(
        "[rand] sizes must not be negative", [&] { ts::rand({-2}, mesh); });
  });
}

// The first values that the first mesh draws; every other must draw the same.
TEST(Random, DependsOnTheSeedAndNotOnTheLayout) {
  at::Tensor normal;
  at::Tensor uniform;
  for_each_mesh([&](const ts::DeviceMesh& mesh) {
    for (const auto& placement :
         {ts::Replicate(), ts::Shard(0), ts::Shard(1)}) {
      const ts::Placements layout(mesh.ndim(), placement);
      ts::manual_seed(7);
      const auto n = ts::randn({6, 5}, mesh, layout);
      const auto u = ts::rand({6, 5}, mesh, layout);
      const auto full_n = n.full_tensor();
      const auto full_u = u.full_tensor();
      if (outside(mesh)) {
        continue;
      }
      if (!normal.defined()) {
        normal = full_n;
        uniform = full_u;
      }
      EXPECT_TRUE(full_n.equal(normal));
      EXPECT_TRUE(full_u.equal(uniform));
    }
  });
  ASSERT_TRUE(normal.defined() || ts::testing::over_processes());
  if (normal.defined()) {
    EXPECT_FALSE(normal.equal(uniform));
  }
}

TEST(Random, ReplicasAreEqualAndDistributionsAreRight) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (outside(mesh)) {
      return;
    }
    // Ranks outside an earlier mesh have drawn less.
    ts::manual_seed(4);
    const auto n = ts::randn({200, 100}, mesh);
    for (const auto& shard : n.shards()) {
      EXPECT_TRUE(shard.equal(n.shards()[0]));
    }
    const auto values = n.shards()[0];
    EXPECT_NEAR(values.mean().item<double>(), 0, 0.03);
    EXPECT_NEAR(values.std().item<double>(), 1, 0.03);
    const auto u = ts::rand({200, 100}, mesh).shards()[0];
    EXPECT_NEAR(u.mean().item<double>(), 0.5, 0.01);
    EXPECT_GE(u.min().item<double>(), 0);
    EXPECT_LT(u.max().item<double>(), 1);
  });
}

TEST(Random, DropoutIsTheSameInEveryLayout) {
  at::Tensor wanted;
  for_each_mesh([&](const ts::DeviceMesh& mesh) {
    for (const auto& placement : {ts::Replicate(), ts::Shard(0)}) {
      const ts::Placements layout(mesh.ndim(), placement);
      ts::manual_seed(3);
      const auto x = ts::ones({50, 40}, mesh, layout);
      const ts::DTensor y(torch::dropout(x, 0.25, /*train=*/true));
      EXPECT_EQ(y.placements(), ts::PlacementsRef(layout));
      const auto full = y.full_tensor();
      if (outside(mesh)) {
        continue;
      }
      if (!wanted.defined()) {
        wanted = full;
        EXPECT_NEAR(full.mean().item<double>(), 1, 0.05);
        EXPECT_NEAR(
            full.eq(0).to(torch::kDouble).mean().item<double>(), 0.25, 0.03);
      }
      EXPECT_TRUE(full.equal(wanted));
    }
  });
}

TEST(Random, FillsTheValueOfAPendingReduction) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (outside(mesh)) {
      return;
    }
    const ts::Placements replicated(mesh.ndim(), ts::Replicate());
    const auto zeros = torch::zeros({4});
    ts::manual_seed(5);
    auto expected = ts::DTensor::from_local(zeros.clone(), mesh, replicated);
    expected.normal_();
    for (const auto op :
         {ts::ReduceOp::Sum,
          ts::ReduceOp::Avg,
          ts::ReduceOp::Product,
          ts::ReduceOp::Max}) {
      const ts::Placements pending(mesh.ndim(), ts::Partial(op));
      auto p = ts::DTensor::from_local(zeros.clone(), mesh, pending);
      ts::manual_seed(5);
      p.normal_();
      EXPECT_TRUE(torch::allclose(p.full_tensor(), expected.full_tensor()))
          << ts::to_string(pending);
    }
  });
}

}  // namespace factories_test
