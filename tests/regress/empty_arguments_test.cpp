// Empty arguments. ATen makes plain tensors of some, and odd shapes of others:
// a convolution of no channels gave as many as the weight has, trapezoid and
// others returned plain tensors, and a cross entropy by soft labels was
// refused.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace empty_arguments_test {

using T = const at::Tensor&;

struct Call {
  const char* name;
  c10::IntArrayRef first;
  c10::IntArrayRef second;
  std::function<at::Tensor(T, T)> run;
};

const std::vector<Call>& calls() {
  namespace F = torch::nn::functional;
  static const std::vector<int64_t> image{0, 3, 3};
  static const std::vector<int64_t> batch{2, 0, 3, 3};
  static const std::vector<int64_t> kernel{5, 0, 2, 2};
  static const std::vector<int64_t> line{0};
  static const std::vector<int64_t> rows{0, 3};
  static const std::vector<int64_t> columns{3, 0};
  static const std::vector<int64_t> images{0, 2, 3, 3};
  static const std::vector<Call> all{
      {"conv2d, no batch",
       image,
       kernel,
       [](T x, T w) { return torch::conv2d(x, w); }},
      {"conv2d, no channels",
       batch,
       kernel,
       [](T x, T w) { return torch::conv2d(x, w); }},
      {"trapezoid", line, line, [](T x, T) { return torch::trapezoid(x); }},
      {"trapezoid of rows",
       rows,
       rows,
       [](T x, T y) { return torch::trapezoid(y, x, 0); }},
      {"trapz of columns",
       columns,
       columns,
       [](T x, T y) { return torch::trapz(y, x, 1); }},
      {"cond", images, line, [](T x, T) { return torch::linalg_cond(x); }},
      {"matrix_norm",
       images,
       line,
       [](T x, T) { return at::linalg_matrix_norm(x, "nuc"); }},
      {"matrix_rank",
       images,
       line,
       [](T x, T) { return torch::linalg_matrix_rank(x); }},
      {"one_hot",
       line,
       line,
       [](T x, T) { return torch::one_hot(x.to(at::kLong), 4); }},
      {"cross_entropy, soft labels",
       rows,
       rows,
       [](T x, T y) { return torch::cross_entropy_loss(x, y); }},
      {"cross_entropy, smoothed",
       rows,
       rows,
       [](T x, T y) {
         return torch::cross_entropy_loss(x, y, {}, 1, -100, 0.1);
       }},
      {"upsample_nearest2d",
       images,
       line,
       [](T x, T) { return torch::upsample_nearest2d(x, {6, 5}); }},
  };
  return all;
}

TEST(EmptyArguments, EqualOneDevice) {
  ts::testing::for_each_mesh([&](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh) || mesh.ndim() > 1) {
      return;
    }
    for (const auto& call : calls()) {
      const auto first = torch::zeros(call.first);
      const auto second = torch::zeros(call.second);
      const auto expected = call.run(first, second);
      for (const auto& placement :
           {ts::Replicate(), ts::Placement(ts::Shard(0))}) {
        SCOPED_TRACE(call.name + (", " + placement.str()));
        auto x = ts::distribute_tensor(first, mesh, {placement});
        x = ts::DTensor(x.requires_grad_());
        const auto actual =
            call.run(x, ts::distribute_tensor(second, mesh, {placement}));
        ASSERT_TRUE(ts::is_dtensor(actual));
        const auto whole = ts::DTensor(actual).full_tensor().detach();
        EXPECT_EQ(whole.dtype(), expected.dtype());
        EXPECT_TRUE(
            whole.sizes() == expected.sizes() &&
            at::allclose(whole, expected, 0, 0, /*equal_nan=*/true))
            << whole << "\nexpected\n"
            << expected;
        if (actual.requires_grad()) {
          actual.sum().backward();
          EXPECT_EQ(x.grad().sizes(), first.sizes());
        }
      }
    }
  });
}

}  // namespace empty_arguments_test
