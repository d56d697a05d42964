// In a simulated world the gradient of full_tensor() used to reach
// only rank 0's replica: the others got zeros.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace full_tensor_gradient_test {

TEST(FullTensorGradient, ReachesEveryRank) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto x = torch::arange(1, 16, torch::kFloat).view({5, 3});
    for (const auto& placements : ts::testing::layouts(mesh, 2)) {
      SCOPED_TRACE(ts::to_string(placements));
      const auto d = ts::distribute_tensor(
          x.clone().requires_grad_(),
          mesh,
          placements,
          {.same_on_all_ranks = true});
      d.full_tensor().pow(2).sum().backward();
      const ts::DTensor grad(d.grad());
      EXPECT_EQ(grad.placements(), ts::PlacementsRef(placements));
      const auto wanted = ts::distribute_tensor(
          2 * x, mesh, placements, {.same_on_all_ranks = true});
      const auto shards = grad.shards();
      for (size_t i = 0; i < shards.size(); ++i) {
        EXPECT_TRUE(shards[i].equal(wanted.shards()[i])) << shards[i];
      }
    }
  });
}

}  // namespace full_tensor_gradient_test
