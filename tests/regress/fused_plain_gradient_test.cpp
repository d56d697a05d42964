// A fused optimizer step took a plain gradient for a distributed parameter:
// every shard was stepped by the first elements of the whole gradient.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace fused_plain_gradient_test {

using T = const at::Tensor&;

struct Step {
  std::string name;
  std::function<void(T parameter, T grad, T state)> run;
};

const std::vector<Step>& steps() {
  static const std::vector<Step> all{
      {"sgd",
       [](T p, T g, T m) {
         at::_fused_sgd_(
             {p}, {g}, {m}, 0.0, 0.9, 0.1, 0.0, false, false, false);
       }},
      {"adam",
       [](T p, T g, T m) {
         at::_fused_adam_(
             {p},
             {g},
             {m},
             {m.clone()},
             {},
             {torch::ones({})},
             0.1,
             0.9,
             0.99,
             0.0,
             1e-8,
             false,
             false);
       }},
      {"adamw",
       [](T p, T g, T m) {
         at::_fused_adamw_(
             {p},
             {g},
             {m},
             {m.clone()},
             {},
             {torch::ones({})},
             0.1,
             0.9,
             0.99,
             0.0,
             1e-8,
             false,
             false);
       }},
      {"adagrad",
       [](T p, T g, T m) {
         at::_fused_adagrad_(
             {p}, {g}, {m}, {torch::ones({})}, 0.1, 0.0, 0.0, 1e-8, false);
       }},
  };
  return all;
}

TEST(FusedPlainGradient, IsRefused) {
  const bool ran = ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, run] : steps()) {
      for (const auto& layout :
           {ts::Placement(ts::Shard(0)), ts::Placement(ts::Replicate())}) {
        SCOPED_TRACE(name + " on " + layout.str());
        const auto plain = [] { return torch::arange(8, torch::kFloat); };
        const auto spread = [&] {
          return ts::distribute_tensor(plain(), mesh, {layout});
        };
        const auto parameter = spread();
        ts::testing::throws_saying<c10::Error>(
            "'grads' holds a plain tensor of shape [8]",
            [&] { run(parameter, plain(), spread()); });
        ts::testing::throws_saying<c10::Error>(
            "holds a plain tensor of shape [8]",
            [&] { run(parameter, spread(), plain()); });
        ts::testing::throws_saying<c10::Error>(
            "'grads' holds a distributed tensor of shape [8]",
            [&] { run(plain(), spread(), plain()); });
        EXPECT_TRUE(parameter.full_tensor().equal(plain()));
        // The same step of one device.
        const auto expected = plain();
        run(expected, plain(), plain());
        run(parameter, spread(), spread());
        EXPECT_TRUE(parameter.full_tensor().allclose(expected));
      }
    }
  });
  EXPECT_TRUE(ran);
}

}  // namespace fused_plain_gradient_test
