// Bags of maxima over a table whose rows are sharded used to turn a NaN into 0:
// the merge looked for who has the maximum, and a NaN equals nobody. (Bags with
// special values by every layout and strategy: RandomBags.)
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace max_of_nan_test {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor pooled(const at::Tensor& weight, const at::Tensor& indices) {
  return torch::nn::functional::embedding_bag(
      indices,
      weight,
      torch::nn::functional::EmbeddingBagFuncOptions().mode(torch::kMax));
}

// As one device's: a NaN in the first entry of a bag is its maximum, others are
// passed over.
TEST(MaxOfNaN, StaysInBags) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16})
      for (const auto& table : ts::testing::layouts(mesh, 2)) {
        SCOPED_TRACE(ts::to_string(table) + " of " + c10::toString(dtype));
        auto value = torch::arange(24, at::kDouble).view({8, 3});
        value[0].fill_(kNaN);
        value[5][1] = kNaN;
        value[6].fill_(-kInfinity);
        value = value.to(dtype);
        // Also bags of only -inf, and of only NaN.
        const auto indices = torch::tensor(
            {{0, 1}, {1, 0}, {5, 2}, {2, 5}, {6, 6}, {0, 0}, {6, 0}, {0, 6}});
        const auto plain = value.clone().requires_grad_();
        const auto wanted = pooled(plain, indices);
        wanted.nan_to_num().sum().backward();

        const ts::Placements whole(mesh.ndim(), ts::Replicate());
        const at::Tensor weight = ts::distribute_tensor(
            value.clone().requires_grad_(),
            mesh,
            table,
            {.same_on_all_ranks = true});
        const auto bags = pooled(
            weight,
            ts::distribute_tensor(
                indices, mesh, whole, {.same_on_all_ranks = true}));
        EXPECT_EQ(
            ts::testing::difference(
                ts::DTensor(bags.detach()).full_tensor(), wanted.detach()),
            "");
        bags.nan_to_num().sum().backward();
        EXPECT_EQ(
            ts::testing::difference(
                ts::DTensor(weight.grad()).full_tensor(), plain.grad()),
            "");
      }
  });
}

// Reductions that are left pending, and those that rules leave.
TEST(MaxOfNaN, StaysInReductions) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    auto value = torch::arange(40, at::kDouble).view({8, 5});
    value[3][1] = kNaN;
    value[7][2] = kInfinity;
    value[0][3] = -kInfinity;
    value.select(1, 4).fill_(-kInfinity);
    using Reduce = std::function<at::Tensor(const at::Tensor&)>;
    const std::vector<Reduce> reductions{
        [](const at::Tensor& x) { return x.amax(); },
        [](const at::Tensor& x) { return x.amin(); },
        [](const at::Tensor& x) { return x.amax(0); },
        [](const at::Tensor& x) { return x.amin(0); },
        [](const at::Tensor& x) { return x.max(); },
        [](const at::Tensor& x) { return std::get<0>(x.max(0)); },
        [](const at::Tensor& x) { return std::get<1>(x.max(0)); },
        [](const at::Tensor& x) { return std::get<1>(x.min(0)); },
        [](const at::Tensor& x) { return std::get<1>(x.aminmax()); },
        [](const at::Tensor& x) { return x.argmax(); },
        [](const at::Tensor& x) { return x.argmin(0); },
        [](const at::Tensor& x) { return std::get<0>(x.cummax(0)); },
        [](const at::Tensor& x) { return std::get<0>(x.topk(3, 0)); },
        [](const at::Tensor& x) { return x.norm(kInfinity); },
        [](const at::Tensor& x) { return x.norm(-kInfinity); },
        [](const at::Tensor& x) { return x.logsumexp(0); },
        [](const at::Tensor& x) { return x.amax(0).maximum(x.amax(0)); },
        [](const at::Tensor& x) {
          return x.gather(0, at::full_like(x, 3, x.options().dtype(at::kLong)));
        }};
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const auto plain = value.to(dtype);
      for (const auto& layout : ts::testing::layouts(mesh, 2)) {
        const at::Tensor x = ts::distribute_tensor(
            plain, mesh, layout, {.same_on_all_ranks = true});
        for (size_t i = 0; i < reductions.size(); ++i) {
          SCOPED_TRACE(
              "reduction " + std::to_string(i) + " of " +
              ts::to_string(layout));
          EXPECT_EQ(
              ts::testing::difference(
                  ts::DTensor(reductions[i](x)).full_tensor(),
                  reductions[i](plain)),
              "");
        }
      }
    }
  });
}

}  // namespace max_of_nan_test
