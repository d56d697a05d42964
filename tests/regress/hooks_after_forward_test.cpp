// Hooks that were registered or cleared between the forward and the backward
// pass used to leave a leaf's gradient as the formulas had made it: a pending
// sum instead of the leaf's own layout.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <functional>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace hooks_after_forward_test {

at::Tensor value() { return torch::arange(12, torch::kDouble).view({4, 3}); }

struct Change {
  const char* name;
  std::function<void(const at::Tensor&)> make;
};

// What a hook has seen of each of its gradients.
void expect_layout(const at::Tensor& grad, const at::Tensor& leaf) {
  ASSERT_TRUE(ts::is_dtensor(grad));
  EXPECT_EQ(ts::DTensor(grad).placements(), ts::DTensor(leaf).placements());
}

std::vector<Change> changes() {
  const auto add = [](const at::Tensor& leaf) {
    const auto layout = leaf.detach();
    return leaf.register_hook(
        [layout](const at::Tensor& grad) { expect_layout(grad, layout); });
  };
  return {
      {"a first hook", add},
      {"several",
       [add](const at::Tensor& leaf) {
         add(leaf);
         add(leaf);
       }},
      {"one that is taken away",
       [add](const at::Tensor& leaf) { leaf.remove_hook(add(leaf)); }},
      {"hooks are cleared",
       [](const at::Tensor& leaf) {
         torch::autograd::impl::clear_hooks(leaf);
       }},
      {"cleared, then a hook", [add](const at::Tensor& leaf) {
         torch::autograd::impl::clear_hooks(leaf);
         ts::keep_grad_layout(leaf);
         add(leaf);
       }}};
}

TEST(HooksAfterForward, LeaveTheGradientInTheLeafsLayout) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto x =
        ts::ones({8, 4}, mesh, ts::Placements(mesh.ndim(), ts::Shard(0)))
            .to(torch::kDouble);
    const auto wanted = torch::full({4, 3}, 8., torch::kDouble);
    for (const auto& placements : ts::testing::layouts(mesh, 2)) {
      for (const auto& change : changes()) {
        for (const bool captured : {false, true}) {
          SCOPED_TRACE(ts::to_string(placements) + ", " + change.name);
          const auto leaf =
              ts::distribute_tensor(
                  value(), mesh, placements, {.same_on_all_ranks = true})
                  .requires_grad_();
          for (int round = 0; round < 2; ++round) {
            const auto loss = at::mm(x, leaf).sum();
            change.make(leaf);
            leaf.mutable_grad() = at::Tensor();
            at::Tensor grad;
            if (captured) {
              grad = torch::autograd::grad({loss}, {leaf})[0];
            } else {
              loss.backward();
              grad = leaf.grad();
            }
            expect_layout(grad, leaf);
            EXPECT_TRUE(ts::DTensor(grad).full_tensor().equal(wanted));
          }
        }
      }
    }
  });
}

// Hooks of C++ and what they return go on as they were.
TEST(HooksAfterForward, HooksChangeTheGradient) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto leaf = ts::distribute_tensor(value(), mesh).requires_grad_();
    const auto loss = (leaf * 2).sum();
    std::vector<int> calls;
    leaf.register_hook([&](const at::Tensor& grad) {
      calls.push_back(1);
      return grad * 10;
    });
    leaf.register_hook([&](const at::Tensor& grad) {
      calls.push_back(2);
      return grad + 1;
    });
    loss.backward();
    EXPECT_EQ(calls, (std::vector{1, 2}));
    EXPECT_TRUE(ts::DTensor(leaf.grad())
                    .full_tensor()
                    .equal(torch::full({4, 3}, 21., torch::kDouble)));
  });
}

}  // namespace hooks_after_forward_test
