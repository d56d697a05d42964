// Ops that take indices take those of every dtype that they take on one device,
// and refuse the others there. gather and others used to refuse int32.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace index_dtypes_test {

using T = const at::Tensor&;
using Result = std::optional<at::Tensor>;

// An op on a 5 x 3 tensor, an index of its own shape and a source.
struct Indexed {
  const char* name;
  at::IntArrayRef index;
  std::function<at::Tensor(
      const at::Tensor&, const at::Tensor&, const at::Tensor&)>
      call;
};

const std::vector<Indexed>& ops() {
  static const std::vector<int64_t> one{5};
  static const std::vector<int64_t> two{5, 3};
  static const std::vector<Indexed> all = {
      {"gather", two, [](T x, T i, T) { return x.gather(0, i); }},
      {"gather columns", two, [](T x, T i, T) { return x.gather(1, i); }},
      {"take_along_dim",
       two,
       [](T x, T i, T) { return x.take_along_dim(i, 0); }},
      {"index_select", one, [](T x, T i, T) { return x.index_select(0, i); }},
      {"index", one, [](T x, T i, T) { return x.index({i}); }},
      {"index_put",
       one,
       [](T x, T i, T s) { return x.index_put({i}, s.max()); }},
      {"index_put, add",
       one,
       [](T x, T i, T s) { return x.index_put({i}, s.max(), true); }},
      {"index_add", one, [](T x, T i, T s) { return x.index_add(0, i, s); }},
      {"scatter",
       two,
       [](T x, T i, T s) { return x.scatter(1, i, s * 0 + 1); }},
      {"scatter_add",
       two,
       [](T x, T i, T s) { return x.scatter_add(0, i, s); }},
      {"embedding", two, [](T x, T i, T) { return at::embedding(x, i); }},
      {"embedding_bag",
       two,
       [](T x, T i, T) {
         const auto offsets = i.select(1, 0) * 0;
         return std::get<0>(
             torch::embedding_bag(x, i.reshape({15}), offsets.slice(0, 0, 1)));
       }},
      // Offsets of another type: both are brought to one.
      {"embedding_bag, mixed",
       two,
       [](T x, T i, T) {
         const auto offsets = torch::tensor({0, 2, 2, 9}, torch::kLong);
         return std::get<0>(torch::embedding_bag(
             x, i.reshape({15}), offsets, false, /*mode=*/0));
       }},
      {"nll_loss", one, [](T x, T i, T) { return at::nll_loss(x, i); }},
  };
  return all;
}

at::Tensor values(int64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return torch::randn({5, 3}, generator, torch::kDouble);
}

at::Tensor indices(const Indexed& op, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
  const int64_t bound = dtype == at::kBool ? 2 : 3;
  return torch::randint(bound, op.index, generator, torch::kLong).to(dtype);
}

Result result_of(const std::function<at::Tensor()>& call) {
  try {
    return call();
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

// The value and, where there is one, the gradient.
struct Outcome {
  Result value;
  Result gradient;
};

Outcome run(const Indexed& op, T x, T index, T source) {
  Outcome outcome;
  const auto leaf = x.detach().requires_grad_();
  outcome.value = result_of([&] { return op.call(leaf, index, source); });
  if (outcome.value.has_value()) {
    outcome.gradient = result_of([&] {
      (*outcome.value * *outcome.value).sum().backward();
      return leaf.grad();
    });
  }
  return outcome;
}

void compare(const char* what, const Result& actual, const Result& expected) {
  EXPECT_EQ(actual.has_value(), expected.has_value()) << what;
  if (!actual.has_value() || !expected.has_value()) {
    return;
  }
  EXPECT_EQ(
      ts::testing::difference(
          ts::DTensor(actual->detach()).full_tensor(), expected->detach()),
      "")
      << what;
}

// index_put of one number by a mask of bytes is refused on one device, where
// index_put of several, and index, take one.
bool is_odd(const std::string& op, at::ScalarType dtype) {
  return op == "index_put" && dtype == at::kByte;
}

TEST(IndexDtypes, AreThoseOfOneDevice) {
  EXPECT_TRUE(ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    for (const auto& op : ops()) {
      for (const auto dtype :
           {at::kLong,
            at::kInt,
            at::kShort,
            at::kChar,
            at::kByte,
            at::kBool,
            at::kFloat}) {
        if (is_odd(op.name, dtype)) {
          continue;
        }
        const auto index = indices(op, dtype);
        const auto expected = run(op, values(1), index, values(2));
        for (const auto& layout : ts::testing::layouts(mesh, 2)) {
          for (const auto& of_index : ts::testing::layouts(mesh, index.dim())) {
            SCOPED_TRACE(
                std::string(op.name) + " of " + ts::to_string(layout) + " by " +
                c10::toString(dtype) + " " + ts::to_string(of_index));
            const auto actual =
                run(op,
                    ts::distribute_tensor(values(1), mesh, layout),
                    ts::distribute_tensor(index, mesh, of_index),
                    ts::distribute_tensor(values(2), mesh, layout));
            compare("value", actual.value, expected.value);
            compare("gradient", actual.gradient, expected.gradient);
          }
        }
      }
    }
  }));
}

}  // namespace index_dtypes_test
