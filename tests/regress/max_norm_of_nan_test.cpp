// max_norm leaves a row whose norm is not a number as it is. Of a column-wise
// sharded table the whole row used to become NaN.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace max_norm_of_nan_test {

at::Tensor table() {
  auto values = torch::arange(24.).view({4, 6}).to(at::kFloat);
  values[1][2] = std::nan("");
  values[2][4] = std::numeric_limits<float>::infinity();
  return values;
}

TEST(MaxNormOfNaN, LeavesTheRow) {
  const ts::EmbeddingScope scope({.max_norm = true});
  const auto ids = torch::tensor({0, 1, 2, 2});
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  ts::testing::for_each_mesh([&](const ts::DeviceMesh& mesh) {
    for (const int64_t dim : {0, 1}) {
      for (const double type : {2., 1., 0.5, 0., kInfinity}) {
        SCOPED_TRACE(c10::str("Shard(", dim, "), norm ", type));
        auto expected = table();
        at::embedding_renorm_(expected, ids, 3, type);
        auto weight = ts::distribute_tensor(
            table(), mesh, ts::Placements(mesh.ndim(), ts::Shard(dim)));
        const auto everywhere = ts::distribute_tensor(
            ids, mesh, ts::Placements(mesh.ndim(), ts::Replicate()));
        at::Tensor written = weight;
        at::embedding_renorm_(written, everywhere, 3, type);
        const auto actual = weight.full_tensor();
        if (!ts::testing::outside(mesh)) {
          EXPECT_TRUE(torch::allclose(actual, expected, 1e-5, 0, true))
              << actual << expected;
        }
      }
    }
  });
}

}  // namespace max_norm_of_nan_test
