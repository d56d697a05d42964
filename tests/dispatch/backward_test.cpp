// Derivative formulas that make plain tensors of the global shape, results that
// are not used, and gradients that pile up.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/dispatch/full_value.h"

namespace tessera {
namespace backward_test {

using tessera::testing::expect_value;
using tessera::testing::laid_out;
using tessera::testing::on_four_ranks;
using tessera::testing::placements_of;

using Loss = std::function<at::Tensor(const at::Tensor&)>;

struct NamedLoss {
  const char* name;
  Loss loss;
};

const std::vector<NamedLoss>& losses() {
  using T = const at::Tensor&;
  static const std::vector<NamedLoss> list = {
      {"max", [](T x) { return x.max() * 2; }},
      {"min", [](T x) { return x.min() * 2; }},
      {"median", [](T x) { return x.median() * 2; }},
      {"max.dim", [](T x) { return std::get<0>(x.max(0)).sum(); }},
      {"min.dim", [](T x) { return std::get<0>(x.min(1)).pow(2).sum(); }},
      {"median.dim", [](T x) { return std::get<0>(x.median(0)).sum(); }},
      {"mode", [](T x) { return std::get<0>(x.mode(0)).sum(); }},
      {"kthvalue", [](T x) { return std::get<0>(x.kthvalue(2, 0)).sum(); }},
      {"amax", [](T x) { return x.amax(0).sum(); }},
      {"sort", [](T x) { return (std::get<0>(x.sort(0)).select(0, 1)).sum(); }},
      {"split, one unused", [](T x) { return x.split(2, 0)[1].pow(2).sum(); }},
      {"chunk, one unused", [](T x) { return x.chunk(3, 1)[0].pow(2).sum(); }},
      {"unbind, one used", [](T x) { return x.unbind(0)[3].pow(2).sum(); }},
      {"split_with_sizes",
       [](T x) { return x.split_with_sizes({1, 5}, 0)[1].pow(3).sum(); }},
      {"slice", [](T x) { return x.slice(0, 1, 4).pow(2).sum(); }},
      {"select", [](T x) { return x.select(0, 2).pow(2).sum(); }},
      {"index_select",
       [](T x) {
         const ImplicitReplication plain;
         return x.index_select(0, at::tensor({1, 1, 4})).pow(2).sum();
       }},
      {"cumsum", [](T x) { return x.cumsum(0).pow(2).sum(); }},
      {"prod", [](T x) { return x.prod(); }},
      {"norm", [](T x) { return x.norm(); }},
      {"std", [](T x) { return x.std() + x.var(0).sum(); }},
      {"mean", [](T x) { return x.mean() * x.mean(1).sum(); }},
      {"logsumexp", [](T x) { return x.logsumexp(0).sum(); }},
      {"expand", [](T x) { return x.unsqueeze(0).expand({3, 6, 5}).sum(); }},
      {"slice written",
       [](T x) {
         auto y = x * 2;
         y.slice(1, 0, 2).mul_(3);
         return y.pow(2).sum();
       }},
      {"select written",
       [](T x) {
         auto y = x * 2;
         y.select(1, 0).copy_(x.select(1, 1));
         return y.pow(2).sum();
       }},
      {"in place chain",
       [](T x) {
         auto y = x * 3;
         y.add_(x).mul_(2);
         return y.sum();
       }},
      {"twice", [](T x) { return (x * x + x).sum() + x.sin().sum(); }},
      {"matrix", [](T x) { return at::mm(x.t(), x).pow(2).sum(); }},
  };
  return list;
}

TEST(Backward, GradientsEqualOneDevice) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto value = testing::reduction_terms(
        at::arange(30, at::kDouble).view({6, 5}), ReduceOp::Sum, 2, 3)[0];
    for (const auto& [name, loss] : losses()) {
      auto plain = value.clone().requires_grad_();
      const auto plain_loss = loss(plain);
      plain_loss.backward();
      for (const auto& layout : {Replicate(), Shard(0), Shard(1), Partial()}) {
        SCOPED_TRACE(std::string(name) + " of " + layout.str());
        const auto leaf = laid_out(value, mesh, layout, 9).requires_grad_();
        try {
          const auto ours = loss(leaf);
          expect_value(ours, plain_loss);
          ours.backward();
        } catch (const c10::Error& error) {
          // A view along the dimension that is cut is a copy: to write into it
          // is refused.
          const bool copied =
              layout.is_shard(1) && std::string_view(name).ends_with("written");
          EXPECT_TRUE(copied) << error.what_without_backtrace();
          continue;
        }
        ASSERT_TRUE(leaf.grad().defined());
        expect_value(leaf.grad(), plain.grad());
      }
    }
  });
}

TEST(Backward, GradientsPileUp) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto value = at::arange(30, at::kDouble).view({6, 5});
    const auto leaf = laid_out(value, mesh, Shard(0), 9).requires_grad_();
    (leaf * leaf).sum().backward();
    leaf.sum(0).sum().backward();
    leaf.t().reshape({30}).sum().backward();
    expect_value(leaf.grad(), value * 2 + 2);
  });
}

TEST(Backward, TwiceThroughTheGraph) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto value = at::arange(30, at::kDouble).view({6, 5}) / 10;
    const auto leaf = laid_out(value, mesh, Shard(0), 9).requires_grad_();
    const auto first = torch::autograd::grad(
        {leaf.pow(3).sum()}, {leaf}, {}, true, /*create_graph=*/true)[0];
    expect_value(first, value.pow(2) * 3);
    const auto second = torch::autograd::grad({first.sum()}, {leaf})[0];
    expect_value(second, value * 6);
  });
}

TEST(Backward, OfAShardedBatchReachesAReplicatedWeight) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto batch = at::arange(35, at::kDouble).view({7, 5}) / 10;
    const auto weight = at::arange(15, at::kDouble).view({3, 5}) / 10;
    const auto plain = weight.clone().requires_grad_();
    at::linear(batch, plain).pow(2).sum().backward();
    const auto x = distribute_tensor(batch, mesh, Shard(0));
    const auto w = distribute_tensor(weight, mesh).requires_grad_();
    at::linear(x, w).pow(2).sum().backward();
    expect_value(w.grad(), plain.grad());
  });
}

}  // namespace backward_test
}  // namespace tessera
