// Autocast, inference mode, meta shards and several threads.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/dispatch/full_value.h"

namespace tessera {
namespace contexts_test {

using tessera::testing::expect_value;
using tessera::testing::laid_out;
using tessera::testing::on_four_ranks;
using tessera::testing::placements_of;

class AutocastOnCpu {
 public:
  AutocastOnCpu() {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~AutocastOnCpu() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
  }
};

TEST(Contexts, LinearUnderAutocastGivesBfloat16) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto batch = at::randn({6, 8});
    const auto weight = at::randn({4, 8});
    const auto bias = at::randn({4});
    const auto plain_weight = weight.clone().requires_grad_();
    const auto x = distribute_tensor(batch, mesh, Shard(0));
    const auto w =
        distribute_tensor(weight.clone().requires_grad_(), mesh, Shard(0));
    const auto b = distribute_tensor(bias, mesh, Shard(0));
    at::Tensor expected;
    at::Tensor actual;
    {
      const AutocastOnCpu autocast;
      expected = at::linear(batch, plain_weight, bias);
      actual = at::linear(x, w, b);
    }
    EXPECT_EQ(actual.scalar_type(), at::kBFloat16);
    expect_value(actual, expected);
    expected.sum().backward();
    actual.sum().backward();
    EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
    const auto difference =
        (DTensor(w.grad()).full_tensor() - plain_weight.grad()).abs().max();
    EXPECT_LT(difference.item<float>(), 0.2);
  });
}

TEST(Contexts, InferenceModeAndNoGrad) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto value = at::randn({6, 8});
    {
      const c10::InferenceMode inference;
      const auto x = distribute_tensor(value, mesh, Shard(0));
      expect_value((x * 2).t().relu(), (value * 2).t().relu());
      const auto y = x + 1;
      y.add_(1);
      expect_value(y, value + 2);
    }
    const c10::NoGradGuard no_grad;
    const auto w =
        distribute_tensor(value.clone().requires_grad_(), mesh, Shard(1));
    w.add_(1);
    EXPECT_TRUE(w.requires_grad());
    EXPECT_FALSE((w * 2).requires_grad());
    expect_value(w, value + 1);
  });
}

TEST(Contexts, MetaShardsHaveShapesAndNoValues) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(
        at::empty({6, 8}, at::TensorOptions().device(at::kMeta)),
        mesh,
        Shard(0));
    EXPECT_TRUE(x.is_meta());
    const auto w = distribute_tensor(
        at::empty({8, 4}, at::TensorOptions().device(at::kMeta)), mesh);
    const auto y = at::mm(x, w).relu();
    EXPECT_EQ(y.sizes(), (std::vector<int64_t>{6, 4}));
    EXPECT_EQ(placements_of(y), "[S(0)]");
    EXPECT_EQ(y.sum().sizes(), at::IntArrayRef());
    // An op without a meta kernel: its dtypes are those of real tensors.
    const auto [values, positions] = x.median(1);
    EXPECT_EQ(values.scalar_type(), at::kFloat);
    EXPECT_EQ(positions.scalar_type(), at::kLong);
    EXPECT_EQ(positions.sizes(), at::IntArrayRef({6}));
    // Real shards of the same layout.
    const auto real =
        at::empty_like(x, at::TensorOptions().device(at::kCPU)).fill_(2);
    EXPECT_EQ(placements_of(real), "[S(0)]");
    expect_value(real, at::full({6, 8}, 2.0f));
  });
}

// Over processes, threads would have to agree on the order of collectives.
TEST(Contexts, SeveralThreadsRunOpsAtOnce) {
  if (testing::over_processes()) {
    return;
  }
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto value = at::arange(30, at::kDouble).view({5, 6}) / 10;
    const auto shared = laid_out(value, mesh, Shard(0), 1);
    std::atomic<int> wrong = 0;
    const auto work = [&](int number) {
      for (int i = 0; i < 40; ++i) {
        const int64_t length = 3 + (number + i) % 7;
        const auto mine = ones(
            {length, 6}, mesh, Shard(i % 2), at::TensorOptions(at::kDouble));
        const auto y = at::mm(mine, shared.t()).sum(0) + number;
        const auto expected =
            at::mm(at::ones({length, 6}, at::kDouble), value.t()).sum(0) +
            number;
        const auto leaf = shared.detach().requires_grad_();
        (leaf * leaf).sum().backward();
        if (!testing::difference(DTensor(y).full_tensor(), expected).empty() ||
            !testing::difference(DTensor(leaf.grad()).full_tensor(), value * 2)
                 .empty()) {
          ++wrong;
        }
      }
    };
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; ++number) {
      threads.emplace_back(work, number);
    }
    for (auto& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(wrong, 0);
  });
}

}  // namespace contexts_test
}  // namespace tessera
