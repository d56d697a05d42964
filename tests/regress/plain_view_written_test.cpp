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

// A tensor made in a formula, written through two views of it and read through
// a third that was made before.
class Quarters : public torch::autograd::Function<Quarters> {
 public:
  static at::Tensor forward(
      torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 1;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*, torch::autograd::variable_list grads) {
    const auto& grad = grads[0];
    auto made = torch::zeros({8, 4}, at::kDouble);
    const auto before = made.narrow(0, 0, 4);
    const auto below = made.narrow(0, 4, 4);
    made.narrow(0, 0, 4).add_(grad);
    below.narrow(1, 0, 2).add_(grad.narrow(1, 0, 2));
    made.narrow(0, 0, 4).mul_(2);
    return {made.narrow(0, 0, 4) + made.narrow(0, 4, 4) + before};
  }
};

TEST(PlainViewWritten, EveryViewSeesIt) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = torch::arange(16, at::kDouble).view({4, 4});
    const auto plain = value.clone().requires_grad_();
    (Quarters::apply(plain) * value).sum().backward();
    const ts::DTensor x(
        ts::distribute_tensor(value, mesh, {ts::Shard(0)}).requires_grad_());
    const auto factor = ts::distribute_tensor(value, mesh, {ts::Shard(1)});
    // The function looks for arguments of this very type.
    const at::Tensor leaf = x;
    (Quarters::apply(leaf) * factor).sum().backward();
    ASSERT_TRUE(ts::is_dtensor(x.grad()));
    EXPECT_TRUE(ts::DTensor(x.grad()).full_tensor().equal(plain.grad()));
  });
}

}  // namespace plain_view_written_test
