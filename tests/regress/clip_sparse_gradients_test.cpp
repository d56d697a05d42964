// What docs/compare_with_one_device.md says of libtorch's clip_grad_norm_: it
// scales the sparse gradients of distributed tables, and leaves plain ones.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace clip_sparse_gradients_test {

// A table with a sparse gradient, and a dense parameter with a gradient.
std::vector<at::Tensor> with_gradients(
    const at::Tensor& table, const at::Tensor& ids, const at::Tensor& dense) {
  auto rows = at::embedding(
      table,
      ids,
      /*padding_idx=*/-1,
      /*scale_grad_by_freq=*/false,
      /*sparse=*/true);
  (rows * 100).sum().backward();
  (dense * 30).sum().backward();
  return {table, dense};
}

at::Tensor whole_gradient(const at::Tensor& parameter) {
  const ts::DTensor grad(parameter.grad());
  return grad.full_tensor();
}

TEST(ClipSparseGradients, ThoseOfDistributedTablesAreScaled) {
  const auto value = torch::arange(40, at::kDouble).view({10, 4});
  const auto ids = torch::tensor({1, 2, 1, 9}, at::kLong);
  const auto plain = with_gradients(
      value.clone().requires_grad_(),
      ids,
      torch::ones({3}, at::kDouble).requires_grad_());
  const auto before = plain[0].grad().to_dense();
  const double norm = torch::nn::utils::clip_grad_norm_(plain, 2.0);
  // If this fails, torch has mended it: say so in the docs.
  EXPECT_TRUE(plain[0].grad().is_sparse());
  EXPECT_TRUE(plain[0].grad().to_dense().equal(before));
  const double scale = 2.0 / (norm + 1e-6);
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    const auto placed = [&](const at::Tensor& t, const ts::Placement& p) {
      return ts::distribute_tensor(t, mesh, {p});
    };
    const auto ours = with_gradients(
        placed(value, ts::Shard(0)).requires_grad_(),
        placed(ids, ts::Replicate()),
        placed(torch::ones({3}, at::kDouble), ts::Replicate())
            .requires_grad_());
    EXPECT_DOUBLE_EQ(torch::nn::utils::clip_grad_norm_(ours, 2.0), norm);
    EXPECT_TRUE(torch::allclose(whole_gradient(ours[0]), before * scale));
    EXPECT_TRUE(torch::allclose(whole_gradient(ours[1]), plain[1].grad()));
  });
}

}  // namespace clip_sparse_gradients_test
