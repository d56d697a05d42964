// A pending sum times infinity, or divided by zero: the terms are infinite, or
// not numbers, where the sum is another. And rows of a lookup, which are zeros
// on all ranks but one, times a tensor that holds infinity.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;
using ts::Replicate;
using ts::Shard;

namespace factors_of_pending_sums_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

at::Tensor whole(const at::Tensor& tensor) {
  return ts::is_dtensor(tensor) ? ts::DTensor(tensor).full_tensor() : tensor;
}

struct Case {
  std::string name;
  std::function<at::Tensor(const at::Tensor& sum, const at::Tensor& factor)>
      value;
};

const std::vector<Case>& cases() {
  using T = at::Tensor;
  static const std::vector<Case> all{
      {"by zero", [](const T& x, const T&) { return x / 0.; }},
      {"by a whole zero", [](const T& x, const T&) { return x / 0; }},
      {"by minus zero", [](const T& x, const T&) { return x / -0.; }},
      {"by not a number", [](const T& x, const T&) { return x / NAN; }},
      {"by infinity", [](const T& x, const T&) { return x / kInfinity; }},
      {"times infinity", [](const T& x, const T&) { return x * kInfinity; }},
      {"times a tensor", [](const T& x, const T& inf) { return x * inf; }},
      {"a tensor times it", [](const T& x, const T& inf) { return inf * x; }},
      {"by a tensor", [](const T& x, const T& inf) { return x / (1 / inf); }},
      {"added infinitely often",
       [](const T& x, const T&) { return at::add(x, x, kInfinity); }},
      {"addcdiv",
       [](const T& x, const T& inf) { return at::addcdiv(x, x, 1 / inf); }},
      {"in place",
       [](const T& x, const T&) {
         auto y = x.clone();
         y.div_(0.);
         return y;
       }},
      {"in place, then more",
       [](const T& x, const T&) {
         auto y = x.clone();
         y.mul_(kInfinity);
         y.add_(x);
         return y * 2;
       }},
      {"finite", [](const T& x, const T&) { return x * 3 / 2; }},
  };
  return all;
}

TEST(FactorsOfPendingSums, EqualOneDevice) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto value = torch::tensor({7., -2., 5., -6., 0., -1., 3., 1.});
    const auto infinity = torch::tensor(kInfinity, at::kDouble);
    const auto x = ts::distribute_tensor(
        value, mesh, ts::Placements(mesh.ndim(), Shard(0)));
    const auto factor = ts::distribute_tensor(
        infinity, mesh, ts::Placements(mesh.ndim(), Replicate()));
    for (const auto& [name, result] : cases()) {
      SCOPED_TRACE(name);
      // Twice: the second call finds a plan.
      for (int i = 0; i < 2; ++i) {
        const auto actual = whole(result(x.sum(), factor));
        const auto expected = result(value.sum(), infinity);
        EXPECT_TRUE(torch::allclose(actual, expected, 1e-9, 0, true))
            << actual << expected;
      }
    }
  });
}

// What is written in place keeps its layout, and a finite factor sends nothing.
TEST(FactorsOfPendingSums, LeaveFiniteOnesPending) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto x = ts::distribute_tensor(torch::ones({8}), mesh, {Shard(0)});
    auto sum = x.sum();
    {
      const ts::CommDebugMode comm;
      sum = sum * 2 / 4;
      sum.mul_(3);
      EXPECT_EQ(comm.get_total_counts(), 0);
    }
    sum.mul_(kInfinity);
    EXPECT_EQ(ts::DTensor(sum).placements()[0], ts::Partial());
    EXPECT_EQ(whole(sum).item<float>(), kInfinity);
  });
}

TEST(FactorsOfPendingSums, RowsOfALookup) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    auto table = torch::arange(1., 25.).view({8, 3});
    table[5] = 0;
    const auto ids = torch::tensor({0, 7, 5, 2});
    auto factor = torch::ones({4, 3});
    factor[0][1] = kInfinity;
    factor[2][2] = kInfinity;
    const ts::Placements everywhere(mesh.ndim(), Replicate());
    ts::Placements by_row = everywhere;
    by_row[0] = Shard(0);
    const auto rows = at::embedding(
        ts::distribute_tensor(table, mesh, by_row),
        ts::distribute_tensor(ids, mesh, everywhere));
    const auto plain = at::embedding(table, ids);
    const auto scale = ts::distribute_tensor(factor, mesh, everywhere);
    for (int i = 0; i < 2; ++i) {
      const auto actual = whole(rows * scale);
      EXPECT_TRUE(torch::allclose(actual, plain * factor, 0, 0, true))
          << actual << plain * factor;
      const auto product = whole(rows.mm(scale.t()));
      EXPECT_TRUE(torch::allclose(product, plain.mm(factor.t()), 1e-6, 0, true))
          << product;
    }
  });
}

}  // namespace factors_of_pending_sums_test
