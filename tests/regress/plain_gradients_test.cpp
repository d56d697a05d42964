// Plain gradients: those that are given to backward() and those that a hook
// returns in the place of a distributed one. They count as replicated, as the
// plain tensors of derivative formulas do, and end in the layout of the leaf.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace plain_gradients_test {

using T = const at::Tensor&;

// Backward passes of x, 6 x 4, into which a plain gradient comes.
struct Pass {
  std::string name;
  std::function<void(T)> run;
};

at::Tensor plain_gradient() {
  return torch::arange(24, torch::kDouble).view({6, 4}).mul(0.5).sub(3);
}

const std::vector<Pass>& passes() {
  const auto returned = [](T) { return plain_gradient(); };
  static const std::vector<Pass> all{
      {"given, elementwise",
       [](T x) { (x.exp() * 2).backward(plain_gradient()); }},
      {"given, one op", [](T x) { (x * 2).backward(plain_gradient()); }},
      {"given, matrix",
       [](T x) {
         x.mm(x.t()).backward(
             plain_gradient().mm(torch::ones({4, 6}, torch::kDouble)));
       }},
      {"given, reduction",
       [](T x) { x.square().sum(0).backward(plain_gradient()[1]); }},
      {"given, view",
       [](T x) { x.square().t().backward(plain_gradient().t()); }},
      {"given, of a part",
       [](T x) {
         x.square().slice(0, 1, 4).backward(plain_gradient().slice(0, 1, 4));
       }},
      {"given twice",
       [](T x) {
         const auto y = x.square();
         y.backward(plain_gradient(), /*retain_graph=*/true);
         y.backward(plain_gradient());
       }},
      {"returned by a hook of a result",
       [=](T x) {
         const auto y = x.square();
         y.register_hook(returned);
         y.exp().sum().backward();
       }},
      {"returned by a hook, and another one",
       [=](T x) {
         const auto y = x.square();
         y.register_hook(returned);
         (y.exp().sum() + x.sum()).backward();
       }},
  };
  return all;
}

TEST(PlainGradients, CountAsReplicated) {
  const auto value = torch::arange(24, torch::kDouble).view({6, 4}).div(24);
  ts::testing::for_each_mesh([&](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    for (const auto& layout : ts::testing::layouts(mesh, 2)) {
      for (const auto& [name, run] : passes()) {
        SCOPED_TRACE(name + " on " + ts::to_string(layout));
        const auto plain = value.clone().requires_grad_();
        run(plain);
        const auto x =
            ts::distribute_tensor(value, mesh, layout).requires_grad_();
        run(x);
        ASSERT_TRUE(ts::is_dtensor(x.grad()));
        const ts::DTensor grad(x.grad());
        EXPECT_EQ(grad.placements(), ts::PlacementsRef(layout));
        EXPECT_TRUE(grad.full_tensor().allclose(plain.grad()));
      }
    }
  });
}

// The hook of a leaf has the last word: what it returns is the gradient. An
// optimizer refuses a plain one.
TEST(PlainGradients, OfTheHookOfALeafAreRefusedByOptimizers) {
  const bool ran = ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto x =
        ts::distribute_tensor(torch::zeros({8}), mesh, {ts::Shard(0)})
            .requires_grad_();
    x.register_hook([](T) { return torch::ones({8}); });
    x.square().sum().backward();
    EXPECT_FALSE(ts::is_dtensor(x.grad()));
    torch::optim::SGD sgd({x}, 0.1);
    ts::testing::throws_saying<c10::Error>(
        "is a plain tensor", [&] { sgd.step(); });
    EXPECT_TRUE(ts::DTensor(x.detach()).full_tensor().equal(torch::zeros({8})));
  });
  EXPECT_TRUE(ran);
}

}  // namespace plain_gradients_test
