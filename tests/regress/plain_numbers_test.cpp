// What one device takes, and distributed tensors refused: a plain tensor of one
// element, questions about sizes and pinned memory, a step count that is
// distributed. native_batch_norm of half types saved its statistics in float.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace plain_numbers_test {

TEST(PlainNumbers, ATensorOfOneElementIsANumber) {
  const auto value = torch::arange(12, at::kFloat).view({4, 3});
  const auto one = torch::full({1}, 3.F);
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    for (const auto& layout : ts::testing::layouts(mesh, 2)) {
      const auto x = ts::distribute_tensor(value, mesh, layout);
      const auto expect = [](const at::Tensor& actual,
                             const at::Tensor& whole) {
        EXPECT_EQ(
            ts::testing::difference(ts::DTensor(actual).full_tensor(), whole),
            "");
      };
      expect(x + one, value + one);
      expect(one * x, one * value);
      expect(at::where(x > 5, x, one), at::where(value > 5, value, one));
      expect(x.clone().mul_(one.view({1, 1})), value.clone().mul_(one));
      // Its gradient would be distributed.
      ts::testing::throws_saying<c10::Error>("'other' is a plain tensor", [&] {
        x + one.clone().requires_grad_();
      });
      ts::testing::throws_saying<c10::Error>(
          "'self' is a plain tensor", [&] { one.clone().add_(x.sum()); });
    }
  });
}

TEST(PlainNumbers, Questions) {
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    const at::Tensor x = ts::zeros({8, 3}, mesh, {ts::Shard(0)});
    EXPECT_TRUE(x.is_same_size(torch::zeros({8, 3})));
    EXPECT_TRUE(torch::zeros({8, 3}).is_same_size(x));
    EXPECT_FALSE(x.is_same_size(torch::zeros({2, 3})));
    EXPECT_FALSE(x.is_pinned());
  });
}

TEST(PlainNumbers, StepCountsMayBeDistributed) {
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    const auto value = torch::arange(12, at::kFloat).view({4, 3});
    const auto stepped = [](const auto& made) {
      const auto parameter = made(0.5);
      const std::vector<at::Tensor> step{made(-1)};
      at::_fused_adam_(
          {parameter},
          {made(2)},
          {made(0)},
          {made(0)},
          {},
          step,
          /*lr=*/0.1,
          /*beta1=*/0.9,
          /*beta2=*/0.99,
          /*weight_decay=*/0.,
          /*eps=*/1e-8,
          /*amsgrad=*/false,
          /*maximize=*/false);
      return parameter;
    };
    const auto expected = stepped([&](double factor) {
      return factor < 0 ? torch::tensor(3.F) : value * factor;
    });
    for (const auto& layout : ts::testing::layouts(mesh, 2)) {
      const auto actual = stepped([&](double factor) -> at::Tensor {
        return factor < 0 ? ts::distribute_tensor(torch::tensor(3.F), mesh)
                          : ts::distribute_tensor(value * factor, mesh, layout);
      });
      EXPECT_EQ(
          ts::testing::difference(ts::DTensor(actual).full_tensor(), expected),
          "");
    }
  });
}

TEST(PlainNumbers, SavedStatisticsOfBatchNorm) {
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    for (const auto input : {at::kHalf, at::kBFloat16, at::kFloat}) {
      for (const auto parameter : {input, at::kFloat}) {
        const auto x = torch::arange(48).view({8, 3, 2}).to(input);
        const auto w = torch::ones({3}, parameter);
        const auto [y, mean, invstd] =
            at::native_batch_norm(x, w, w, {}, {}, true, 0.1, 1e-5);
        const auto weight = ts::distribute_tensor(w, mesh);
        const auto [dy, dmean, dinvstd] = at::native_batch_norm(
            ts::distribute_tensor(x, mesh, {ts::Shard(0)}),
            weight,
            weight,
            {},
            {},
            true,
            0.1,
            1e-5);
        EXPECT_EQ(dy.dtype(), y.dtype());
        EXPECT_EQ(dmean.dtype(), mean.dtype());
        EXPECT_EQ(dinvstd.dtype(), invstd.dtype());
        EXPECT_EQ(
            ts::testing::difference(ts::DTensor(dmean).full_tensor(), mean),
            "");
      }
    }
  });
}

}  // namespace plain_numbers_test
