// distribute_ of a parameter that had a plain gradient already used to leave
// the gradient plain: the next backward pass or optimizer step then failed.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace distribute_with_grad_test {

TEST(DistributeWithGrad, TheGradientIsLaidOutAsTheParameter) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    for (const auto& placements : ts::testing::layouts(mesh, 2)) {
      SCOPED_TRACE(ts::to_string(placements));
      const auto value = torch::arange(15, torch::kFloat).view({5, 3});
      const auto plain = value.clone().requires_grad_();
      const auto leaf = value.clone().requires_grad_();
      (plain * plain).sum().backward();
      (leaf * leaf).sum().backward();
      const auto held = leaf.grad();
      ts::distribute_(leaf, mesh, placements);
      ASSERT_TRUE(ts::is_dtensor(leaf.grad()));
      EXPECT_EQ(
          ts::DTensor(leaf.grad()).placements(), ts::PlacementsRef(placements));
      EXPECT_TRUE(held.is_same(leaf.grad())) << "its holders go on with it";

      torch::optim::SGD on_plain({plain}, 0.5);
      torch::optim::SGD on_leaf({leaf}, 0.5);
      (plain * 3).sum().backward();  // accumulates
      (leaf * 3).sum().backward();
      on_plain.step();
      on_leaf.step();
      EXPECT_TRUE(ts::DTensor(leaf.grad()).full_tensor().equal(plain.grad()));
      EXPECT_TRUE(ts::DTensor(leaf.detach()).full_tensor().equal(plain));
    }
  });
}

// What cannot be distributed is refused before the parameter is touched.
TEST(DistributeWithGrad, ASparseGradientIsRefused) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    auto leaf = torch::ones({4, 2}, torch::requires_grad());
    leaf.mutable_grad() = torch::ones({4, 2}).to_sparse(1);
    ts::testing::throws_saying<c10::NotImplementedError>(
        "sparse gradient", [&] { ts::distribute_(leaf, mesh); });
    EXPECT_FALSE(ts::is_dtensor(leaf));
    EXPECT_TRUE(leaf.grad().is_sparse());
  });
}

}  // namespace distribute_with_grad_test
