// A formula that gives a distributed parameter no gradient used to fail where
// the gradient is laid out as the parameter is.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace no_gradient_test {

struct Ignores : torch::autograd::Function<Ignores> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* /*ctx*/,
      const at::Tensor& /*ignored*/,
      const at::Tensor& x) {
    return x * 2;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* /*ctx*/,
      torch::autograd::variable_list grads) {
    return {at::Tensor(), grads[0] * 2};
  }
};

TEST(NoGradient, LeavesAParameterAsItIs) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const ts::Placements cut(mesh.ndim(), ts::Shard(0));
    const auto distributed = [&]() -> at::Tensor {
      return ts::distribute_tensor(
          torch::ones({5, 3}).requires_grad_(),
          mesh,
          cut,
          {.same_on_all_ranks = true});
    };
    const at::Tensor ignored = distributed();
    const at::Tensor used = distributed();
    Ignores::apply(ignored, used).sum().backward();
    EXPECT_FALSE(ignored.grad().defined());
    EXPECT_TRUE(
        ts::DTensor(used.grad()).full_tensor().equal(torch::full({5, 3}, 2.0)));
  });
}

}  // namespace no_gradient_test
