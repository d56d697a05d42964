// In a backward pass every plain tensor used to be taken for a replicated one,
// also in hooks and Functions of users: replicas came to differ without an
// error.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace plain_in_hooks_test {

using Grad = const at::Tensor&;

// A gradient formula of a user's that mixes.
struct Mixes : torch::autograd::Function<Mixes> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* /*ctx*/, const at::Tensor& x) {
    return x * 2;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* /*ctx*/,
      const torch::autograd::variable_list& grads) {
    return {grads[0] * torch::ones(grads[0].sizes())};
  }
};

struct PreHook : torch::autograd::FunctionPreHook {
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& grads) override {
    return {grads[0] + torch::ones(grads[0].sizes())};
  }
};

struct PostHook : torch::autograd::FunctionPostHook {
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& /*inputs*/) override {
    auto changed = outputs;
    changed[0] = outputs[0] + torch::ones(outputs[0].sizes());
    return changed;
  }
};

void expect_refused(const std::function<void()>& backward) {
  ts::testing::throws_saying<c10::Error>("is a plain tensor", backward);
}

ts::DTensor leaf_on(const ts::DeviceMesh& mesh, at::IntArrayRef sizes = {4}) {
  return ts::distribute_tensor(
      torch::arange(c10::multiply_integers(sizes), torch::kFloat)
          .view(sizes)
          .requires_grad_(),
      mesh,
      {},
      {.same_on_all_ranks = true});
}

TEST(PlainInHooks, AHookOfALeafMayNotMix) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto x = leaf_on(mesh);
    x.register_hook([](Grad grad) { return grad + torch::randn({4}); });
    expect_refused([&] { (x * 2).sum().backward(); });
    // The gradient by itself is fine, and so are scalars.
    const auto y = leaf_on(mesh);
    y.register_hook([](Grad grad) { return grad * 3 + torch::tensor(1.0f); });
    (y * 2).sum().backward();
    EXPECT_TRUE(ts::is_dtensor(y.grad()));
  });
}

TEST(PlainInHooks, AHookOfAResultMayNotMix) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto x = leaf_on(mesh);
    const auto y = x.exp();
    y.register_hook([](Grad grad) { return grad + torch::randn({4}); });
    expect_refused([&] { y.sum().backward(); });
  });
}

TEST(PlainInHooks, HooksOfNodesMayNotMix) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto x = leaf_on(mesh);
    const auto before = x.exp();
    before.grad_fn()->add_pre_hook(std::make_unique<PreHook>());
    expect_refused([&] { before.sum().backward(); });
    const auto after = x.exp();
    after.grad_fn()->add_post_hook(std::make_unique<PostHook>());
    expect_refused([&] { after.sum().backward(); });
  });
}

TEST(PlainInHooks, AFunctionMayNotMix) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto x = leaf_on(mesh);
    expect_refused([&] { Mixes::apply(at::Tensor(x)).sum().backward(); });
  });
}

TEST(PlainInHooks, ImplicitReplicationAdmitsThemThereToo) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto x = leaf_on(mesh);
    x.register_hook([](Grad grad) { return grad + torch::ones({4}); });
    const ts::ImplicitReplication guard;
    Mixes::apply(at::Tensor(x)).sum().backward();
    if (!ts::testing::outside(mesh)) {
      EXPECT_TRUE(
          ts::DTensor(x.grad()).full_tensor().equal(torch::full({4}, 2.0f)));
    }
  });
}

// Formulas that make plain tensors of the global shape, with and without hooks
// on their nodes: the formula's own are admitted all the same.
TEST(PlainInHooks, FormulasKeepTheirOwn) {
  struct Case {
    std::string name;
    std::function<at::Tensor(const at::Tensor&)> value;
  };
  const std::vector<Case> cases{
      {"split", [](Grad x) { return x.split(2, 1)[1]; }},
      {"chunk", [](Grad x) { return x.chunk(3, 0)[0]; }},
      {"unbind", [](Grad x) { return x.unbind(1)[2]; }},
      {"max", [](Grad x) { return std::get<0>(x.max(0)); }},
      {"min", [](Grad x) { return std::get<0>(x.min(1)); }},
      {"median", [](Grad x) { return std::get<0>(x.median(1)); }},
      {"kthvalue", [](Grad x) { return std::get<0>(x.kthvalue(2, 1)); }},
      {"max of all", [](Grad x) { return x.max(); }},
      {"slice written",
       [](Grad x) {
         auto y = x * 1;
         y.slice(0, 0, 2).mul_(3);
         return y;
       }},
  };
  ts::testing::for_each_mesh([&](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;  // some formulas ask for a number, which no shard here can tell
    }
    for (const auto& [name, value] : cases) {
      SCOPED_TRACE(name);
      const auto plain = torch::arange(30, torch::kFloat)
                             .view({5, 6})
                             .mul(0.7f)
                             .remainder(5)
                             .requires_grad_();
      value(plain).pow(2).sum().backward();
      for (const bool hooked : {false, true}) {
        SCOPED_TRACE(hooked ? "hooked" : "no hooks");
        const auto x = ts::distribute_tensor(
            plain.detach().clone().requires_grad_(),
            mesh,
            ts::Placements(mesh.ndim(), ts::Replicate()),
            {.same_on_all_ranks = true});
        const auto y = value(x);
        int calls = 0;
        if (hooked) {
          y.register_hook([&](Grad grad) {
            ++calls;
            return grad * 1;
          });
        }
        y.pow(2).sum().backward();
        EXPECT_EQ(calls, hooked ? 1 : 0);
        EXPECT_TRUE(ts::DTensor(x.grad()).full_tensor().allclose(plain.grad()));
      }
    }
  });
}

}  // namespace plain_in_hooks_test
