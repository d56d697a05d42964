// A norm of one element is its magnitude: it used to be the root of its square,
// which is infinite for 1e20 and 0 for 1e-30. And many norms used to take one
// reduction each.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace norms_of_one_test {

using Tensors = std::vector<at::Tensor>;

at::Tensor whole(const at::Tensor& tensor) {
  return ts::is_dtensor(tensor) ? ts::DTensor(tensor).full_tensor() : tensor;
}

ts::DTensor sharded(const at::Tensor& value, const ts::DeviceMesh& mesh) {
  const ts::Placements placements(mesh.ndim(), ts::Shard(0));
  return ts::distribute_tensor(value, mesh, placements);
}

void expect_equal(
    const at::Tensor& actual, const at::Tensor& expected, const char* what) {
  const auto given = whole(actual);
  EXPECT_TRUE(
      given.sizes() == expected.sizes() && torch::allclose(
                                               given,
                                               expected,
                                               /*rtol=*/1e-6,
                                               /*atol=*/0,
                                               /*equal_nan=*/true))
      << what << ": " << given << expected;
}

const Tensors& ones() {
  static const Tensors all{
      torch::tensor({1e20F}),
      torch::tensor({-1e-30F}),
      torch::tensor({NAN}),
      torch::tensor({{1e20F, -1e-30F, 0.F}}),
      torch::tensor({6e4}, at::kHalf)};
  return all;
}

TEST(NormsOfOne, AreMagnitudes) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    for (const auto& value : ones()) {
      const auto x = sharded(value, mesh);
      for (const double ord : {2., 3., 1., -2., 0.}) {
        SCOPED_TRACE(ord);
        for (const bool keepdim : {false, true}) {
          expect_equal(
              at::linalg_vector_norm(x, ord, {0}, keepdim),
              at::linalg_vector_norm(value, ord, {0}, keepdim),
              "vector_norm");
        }
        expect_equal(x.norm(ord, {0}), value.norm(ord, {0}), "norm");
      }
    }
    expect_equal(
        at::dist(sharded(ones()[0], mesh), sharded(ones()[1], mesh)),
        at::dist(ones()[0], ones()[1]),
        "dist");
  });
}

TEST(NormsOfOne, ClippedGradients) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    auto parameter = sharded(torch::ones({1}), mesh);
    parameter.requires_grad_();
    (parameter * 1e20F).sum().backward();
    torch::nn::utils::clip_grad_norm_(at::Tensor(parameter), 1.0);
    expect_equal(parameter.grad(), torch::ones({1}), "clipped");
  });
}

// Gradients of a model: sharded, replicated and pending, of one element, half,
// without elements, and a plain one.
Tensors gradients() {
  return {
      torch::arange(12.).view({4, 3}).to(at::kFloat),
      torch::arange(5.).to(at::kFloat),
      torch::tensor({1e20F}),
      torch::tensor({300., 400., 1.}, at::kHalf),
      torch::arange(7.).to(at::kDouble),
      torch::empty({0}),
      torch::tensor({3., 4.})};
}

Tensors laid_out(const ts::DeviceMesh& mesh) {
  const Tensors values = gradients();
  const ts::Placements everywhere(mesh.ndim(), ts::Replicate());
  Tensors all;
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    all.push_back(
        i == 1 ? ts::distribute_tensor(values[i], mesh, everywhere)
               : sharded(values[i], mesh));
  }
  all.push_back(values.back());
  return all;
}

TEST(ManyNorms, EqualOneDevice) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    for (const double ord : {2., 1., 3., 0.}) {
      const auto actual = at::_foreach_norm(laid_out(mesh), ord);
      const auto expected = at::_foreach_norm(gradients(), ord);
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t i = 0; i < actual.size(); ++i) {
        SCOPED_TRACE(c10::str("tensor ", i, ", order ", ord));
        EXPECT_EQ(actual[i].scalar_type(), expected[i].scalar_type());
        expect_equal(actual[i], expected[i], "norm");
      }
    }
  });
}

TEST(ManyNorms, OfOneLayoutTakeOneReduction) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    Tensors parameters;
    for (int i = 0; i < 5; ++i) {
      parameters.push_back(sharded(torch::ones({8, i + 1}), mesh));
    }
    const ts::CommDebugMode comm;
    const auto norms = at::_foreach_norm(parameters, 2);
    EXPECT_EQ(comm.get_total_counts(), 1);
    EXPECT_EQ(comm.get_comm_counts().at("all_reduce"), 1);
  });
}

TEST(ManyNorms, HaveGradients) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    auto plain = torch::arange(1., 6.).requires_grad_();
    at::_foreach_norm({plain}, 2)[0].backward();
    auto x = sharded(plain.detach(), mesh);
    x.requires_grad_();
    at::_foreach_norm({x}, 2)[0].backward();
    expect_equal(x.grad(), plain.grad(), "gradient");
  });
}

}  // namespace norms_of_one_test
