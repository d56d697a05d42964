// The variance of no values is not a number, whatever the correction. With a
// negative one it used to be 0.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace variance_of_nothing_test {

TEST(VarianceOfNothing, IsNotANumber) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    const ts::Placements placements(mesh.ndim(), ts::Shard(0));
    for (const auto& value : {torch::empty({0, 3}), torch::empty({2, 0})}) {
      const auto x = ts::distribute_tensor(value, mesh, placements);
      for (const int correction : {-2, -1, 0, 1}) {
        for (const int64_t dim : {0, 1}) {
          const ts::DTensor actual(at::var(x, {dim}, correction));
          const auto expected = at::var(value, {dim}, correction);
          const ts::DTensor root(at::std(x, {dim}, correction));
          const auto given = actual.full_tensor();
          const auto given_root = root.full_tensor();
          if (!ts::testing::outside(mesh)) {
            EXPECT_TRUE(torch::allclose(given, expected, 0, 0, true))
                << given << expected;
            EXPECT_TRUE(torch::allclose(given_root, expected, 0, 0, true));
          }
        }
      }
    }
  });
}

}  // namespace variance_of_nothing_test
