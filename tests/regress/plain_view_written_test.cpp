// Some derivative formulas make a plain tensor and write distributed ones into
// views of it. The view became distributed, its base stayed as it was, and the
// gradient came out wrong.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace plain_view_written_test {

TEST(PlainViewWritten, MatrixExpHasItsGradient) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto value = torch::arange(16, at::kDouble).view({4, 4}).sin();
    const auto plain = value.clone().requires_grad_();
    at::linalg_matrix_exp(plain).sin().sum().backward();
    for (const auto& placement :
         {ts::Replicate(), ts::Shard(0), ts::Shard(1)}) {
      const ts::Placements placements(mesh.ndim(), placement);
      const ts::DTensor x(
          ts::distribute_tensor(value, mesh, placements).requires_grad_());
      at::linalg_matrix_exp(x).sin().sum().backward();
      ASSERT_TRUE(ts::is_dtensor(x.grad()));
      EXPECT_TRUE(
          at::allclose(ts::DTensor(x.grad()).full_tensor(), plain.grad(), 1e-9))
          << placement.str();
    }
  });
}

}  // namespace plain_view_written_test
