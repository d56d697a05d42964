// Calls that one device refuses used to end in a signal, in foreign memory or
// in numbers: rules read sizes and lists that ATen had not checked, and ops
// that are composed of others lacked checks of ATen's.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace wrong_arguments_test {

using Tensors = std::vector<at::Tensor>;

struct Case {
  const char* name;
  Tensors tensors;
  std::function<void(const Tensors&)> call;
};

at::Tensor ones(at::IntArrayRef sizes) {
  return torch::ones(sizes, torch::kDouble);
}

// The tensors in a layout: replicated, or cut along their first dimension.
Tensors laid_out(
    const Tensors& tensors, const ts::DeviceMesh& mesh, bool sharded) {
  Tensors result;
  for (const auto& tensor : tensors) {
    const bool cut = sharded && tensor.dim() > 0;
    result.push_back(ts::distribute_tensor(
        tensor.clone(),
        mesh,
        ts::Placements(
            mesh.ndim(), cut ? ts::Shard(0) : ts::Placement(ts::Replicate())),
        {.same_on_all_ranks = true}));
  }
  return result;
}

void check_refused(const std::vector<Case>& cases) {
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    Tensors plain;
    for (const auto& tensor : c.tensors) {
      plain.push_back(tensor.clone());
    }
    EXPECT_ANY_THROW(c.call(plain)) << "one device";
  }
  ts::testing::for_each_mesh([&](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    for (const auto& c : cases) {
      for (const bool sharded : {false, true}) {
        SCOPED_TRACE(std::string(c.name) + (sharded ? ", sharded" : ""));
        const auto tensors = laid_out(c.tensors, mesh, sharded);
        const auto error = ts::testing::error_of([&] { c.call(tensors); });
        EXPECT_NE(error, "");
        EXPECT_EQ(error.find("INTERNAL ASSERT"), std::string::npos) << error;
      }
    }
  });
}

struct Windows {
  std::vector<int64_t> stride = {1};
  std::vector<int64_t> padding = {0};
  std::vector<int64_t> dilation = {1};
  bool transposed = false;
};

Case convolution(
    const char* name,
    const at::Tensor& input,
    const at::Tensor& kernel,
    const Windows& windows) {
  return {name, {input, kernel}, [windows](const Tensors& t) {
            at::convolution(
                t[0],
                t[1],
                std::nullopt,
                windows.stride,
                windows.padding,
                windows.dilation,
                windows.transposed,
                {0},
                1);
          }};
}

TEST(WrongArguments, OfWindows) {
  const auto image = ones({2, 1, 5, 5});
  const auto kernel = ones({1, 1, 2, 2});
  check_refused({
      convolution("conv2d, stride 0", image, kernel, {.stride = {0, 0}}),
      convolution("conv2d, dilation 0", image, kernel, {.dilation = {0, 0}}),
      convolution("conv2d, padding -1", image, kernel, {.padding = {-1, -1}}),
      convolution(
          "conv1d, stride 0",
          ones({2, 1, 5}),
          ones({1, 1, 2}),
          {.stride = {0}}),
      convolution(
          "conv3d, one stride of three 0",
          ones({1, 1, 4, 4, 4}),
          ones({1, 1, 2, 2, 2}),
          {.stride = {2, 2, 0}}),
      convolution(
          "conv_transpose1d, stride 0",
          ones({2, 1, 5}),
          ones({1, 1, 2}),
          {.stride = {0}, .transposed = true}),
      convolution(
          "conv_transpose3d, a list too short",
          ones({1, 1, 4, 4, 4}),
          ones({1, 1, 2, 2, 2}),
          {.stride = {1, 1}, .transposed = true}),
      {"conv1d, output channels that are no groups",
       {ones({2, 2, 5}), ones({5, 1, 2})},
       [](const Tensors& t) {
         at::convolution(t[0], t[1], {}, {1}, {0}, {1}, false, {0}, 2);
       }},
      {"conv1d, a weight of another dtype",
       {ones({2, 1, 5}), torch::ones({1, 1, 2}, torch::kInt)},
       [](const Tensors& t) {
         at::convolution(t[0], t[1], {}, {1}, {0}, {1}, false, {0}, 1);
       }},
      {"group_norm, another number of elements",
       {ones({1, 6, 3}), ones({6})},
       [](const Tensors& t) {
         at::native_group_norm(t[0], t[1], t[1], 1, 6, 64, 2, 1e-5);
       }},
      {"group_norm, channels that are no groups",
       {ones({4, 5, 6}), ones({5})},
       [](const Tensors& t) {
         at::native_group_norm(t[0], t[1], t[1], 4, 5, 6, 2, 1e-5);
       }},
      {"im2col, stride 0",
       {image},
       [](const Tensors& t) {
         at::im2col(t[0], {2, 2}, {1, 1}, {0, 0}, {0, 0});
       }},
      {"im2col, no padding given",
       {image},
       [](const Tensors& t) { at::im2col(t[0], {2, 2}, {1, 1}, {}, {1, 1}); }},
      {"im2col, one dimension",
       {ones({1})},
       [](const Tensors& t) {
         at::im2col(t[0], {2, 2}, {1, 1}, {0, 0}, {1, 1});
       }},
      {"col2im, kernel 0",
       {ones({1, 4, 16})},
       [](const Tensors& t) {
         at::col2im(t[0], {5, 5}, {0, 2}, {1, 1}, {0, 0}, {1, 1});
       }},
      {"col2im, no dimensions",
       {ones({})},
       [](const Tensors& t) {
         at::col2im(t[0], {5, 5}, {2, 2}, {1, 1}, {0, 0}, {1, 1});
       }},
      {"max_pool3d, one dimension",
       {ones({180})},
       [](const Tensors& t) { at::max_pool3d(t[0], 3); }},
      {"max_pool3d, one stride of three 0",
       {ones({1, 2, 3, 6, 5})},
       [](const Tensors& t) {
         at::max_pool3d_with_indices(t[0], 3, {0, 1, 2}, 1, 1, true);
       }},
      {"max_pool3d, a kernel of 0",
       {ones({1, 2, 3, 6, 5})},
       [](const Tensors& t) { at::max_pool3d_with_indices(t[0], 0, 1); }},
      {"adaptive_avg_pool2d, no dimensions",
       {ones({})},
       [](const Tensors& t) { at::_adaptive_avg_pool2d(t[0], {5, 5}); }},
      {"reflection_pad2d, a list too short",
       {image},
       [](const Tensors& t) { at::reflection_pad2d(t[0], {1, 1}); }},
      {"reflection_pad2d, less than nothing left",
       {image},
       [](const Tensors& t) { at::reflection_pad2d(t[0], {-4, -4, 0, 0}); }},
  });
}

TEST(WrongArguments, OfTooFewDimensions) {
  const auto number = ones({});
  const auto vector = ones({4});
  check_refused({
      {"rot90, one dimension named",
       {ones({3, 3})},
       [](const Tensors& t) { at::rot90(t[0], 1, {0}); }},
      {"roll, a dimension out of range",
       {ones({3, 3, 3})},
       [](const Tensors& t) { at::roll(t[0], 1, -7); }},
      {"cummax, a dimension out of range",
       {ones({3, 3})},
       [](const Tensors& t) { at::cummax(t[0], 2); }},
      {"grid_sampler, a grid without dimensions",
       {ones({2, 3, 5, 5}), number},
       [](const Tensors& t) { at::grid_sampler(t[0], t[1], 0, 0, true); }},
      {"grid_sampler_2d, a grid of one dimension",
       {ones({2, 3, 5, 5}), vector},
       [](const Tensors& t) { at::grid_sampler_2d(t[0], t[1], 0, 0, true); }},
      {"affine_grid_generator, an empty size",
       {ones({2, 2, 3})},
       [](const Tensors& t) { at::affine_grid_generator(t[0], {}, true); }},
      {"segment_reduce, no dimensions",
       {number, torch::ones({4}, torch::kLong)},
       [](const Tensors& t) {
         at::segment_reduce(t[0], "sum", t[1], {}, {}, 0, true);
       }},
      {"geqrf", {number}, [](const Tensors& t) { at::geqrf(t[0]); }},
      {"geqrf of a vector",
       {vector},
       [](const Tensors& t) { at::geqrf(t[0]); }},
      {"linalg_eig", {number}, [](const Tensors& t) { at::linalg_eig(t[0]); }},
      {"linalg_eigvals",
       {number},
       [](const Tensors& t) { at::linalg_eigvals(t[0]); }},
      {"linalg_pinv",
       {number},
       [](const Tensors& t) { at::linalg_pinv(t[0]); }},
      {"pinverse of a vector",
       {vector},
       [](const Tensors& t) { at::pinverse(t[0]); }},
      {"cholesky_solve",
       {number, ones({3, 3})},
       [](const Tensors& t) { at::cholesky_solve(t[0], t[1]); }},
      {"linalg_solve_triangular",
       {ones({3, 3}), number},
       [](const Tensors& t) {
         at::linalg_solve_triangular(t[0], t[1], true, true, false);
       }},
      {"linalg_lstsq",
       {number, number},
       [](const Tensors& t) { at::linalg_lstsq(t[0], t[1]); }},
      {"histogram, edges without dimensions",
       {vector, number},
       [](const Tensors& t) { at::histogram(t[0], t[1], {}, false); }},
      {"diag_embed, one dimension twice",
       {number},
       [](const Tensors& t) { at::diag_embed(t[0]); }},
      {"cdist, no dimensions",
       {number, number},
       [](const Tensors& t) { at::_cdist_forward(t[0], t[1], 2, {}); }},
      {"_fft_c2r, no dimensions",
       {torch::ones({}, torch::kComplexDouble)},
       [](const Tensors& t) { at::_fft_c2r(t[0], {0}, 0, 4); }},
      {"embedding_dense_backward, no dimensions",
       {number, torch::zeros({}, torch::kLong)},
       [](const Tensors& t) {
         at::embedding_dense_backward(t[0], t[1], 4, -1, false);
       }},
      {"embedding_renorm_, no dimensions",
       {number, torch::zeros({1}, torch::kLong)},
       [](const Tensors& t) {
         at::Tensor table = t[0];
         at::embedding_renorm_(table, t[1], 1, 2);
       }},
      {"gather, a dimension out of range",
       {vector, torch::zeros({2, 0}, torch::kLong)},
       [](const Tensors& t) { at::gather(t[0], 1, t[1]); }},
  });
}

// Weight, bias, running mean, running variance.
Case norm_of(const char* name, at::Tensor input, Tensors given, bool training) {
  Tensors tensors{std::move(input)};
  tensors.insert(tensors.end(), given.begin(), given.end());
  return {name, std::move(tensors), [training](const Tensors& t) {
            at::batch_norm(
                t[0], t[1], t[2], t[3], t[4], training, 0.1, 1e-5, false);
          }};
}

TEST(WrongArguments, OfBatchNorm) {
  const auto x = ones({6, 3, 2});
  const auto c = ones({3});
  const auto none = ones({0});
  std::vector<Case> cases;
  for (const bool training : {true, false}) {
    cases.push_back(norm_of("short weight", x, {ones({2}), c, c, c}, training));
    cases.push_back(norm_of("empty weight", x, {none, c, c, c}, training));
    cases.push_back(norm_of("empty bias", x, {c, none, c, c}, training));
    cases.push_back(norm_of("long bias", x, {c, ones({4}), c, c}, training));
    cases.push_back(norm_of("empty mean", x, {c, c, none, c}, training));
    cases.push_back(
        norm_of("long variance", x, {c, c, c, ones({6})}, training));
    cases.push_back(norm_of(
        "integer weight",
        x,
        {torch::ones({3}, torch::kLong), c, c, c},
        training));
  }
  cases.push_back({"one dimension", {ones({6})}, [](const Tensors& t) {
                     at::native_batch_norm(
                         t[0], {}, {}, {}, {}, true, 0.1, 1e-5);
                   }});
  cases.push_back({"no statistics in evaluation", {x}, [](const Tensors& t) {
                     at::batch_norm(
                         t[0], {}, {}, {}, {}, false, 0.1, 1e-5, false);
                   }});
  cases.push_back(
      {"instance_norm, long weight", {x, ones({4})}, [](const Tensors& t) {
         at::instance_norm(t[0], t[1], {}, {}, {}, true, 0.1, 1e-5, false);
       }});
  cases.push_back(
      {"instance_norm, empty mean", {x, none, c}, [](const Tensors& t) {
         at::instance_norm(t[0], {}, {}, t[1], t[2], false, 0.1, 1e-5, false);
       }});
  check_refused(cases);
}

TEST(WrongArguments, OfRandomNumbers) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto weights = [](std::vector<double> values) {
    return torch::tensor(values, torch::kDouble);
  };
  const auto draw = [](const Tensors& t) { at::multinomial(t[0], 1); };
  const auto toss = [](const Tensors& t) { at::bernoulli(t[0]); };
  const auto integers = torch::ones({5}, torch::kLong);
  check_refused({
      {"multinomial, inf", {weights({1, inf, 1})}, draw},
      {"multinomial, nan", {weights({1, nan, 1})}, draw},
      {"multinomial, negative", {weights({1, -1, 1})}, draw},
      {"multinomial, zeros", {torch::zeros({3})}, draw},
      {"multinomial, a row of zeros",
       {torch::cat({ones({4, 3}), torch::zeros({1, 3}, torch::kDouble)})},
       draw},
      {"multinomial with replacement, inf",
       {weights({1, inf, 1})},
       [](const Tensors& t) { at::multinomial(t[0], 3, true); }},
      {"bernoulli, above one", {weights({0, 1, 1.5})}, toss},
      {"bernoulli, below zero", {weights({0, -.5, 1})}, toss},
      {"bernoulli, nan", {weights({0, 1, nan})}, toss},
      {"bernoulli, integers", {integers}, toss},
      {"bernoulli_, nan",
       {ones({3}), weights({0, 1, nan})},
       [](const Tensors& t) { t[0].bernoulli_(t[1]); }},
      {"normal_", {integers}, [](const Tensors& t) { t[0].normal_(); }},
      {"log_normal_", {integers}, [](const Tensors& t) { t[0].log_normal_(); }},
      {"cauchy_", {integers}, [](const Tensors& t) { t[0].cauchy_(); }},
      {"exponential_",
       {integers},
       [](const Tensors& t) { t[0].exponential_(); }},
      {"geometric_ of bools",
       {torch::ones({5}, torch::kBool)},
       [](const Tensors& t) { t[0].geometric_(.5); }},
      {"random_ of complex numbers",
       {torch::ones({5}, torch::kComplexFloat)},
       [](const Tensors& t) { t[0].random_(); }},
      {"randn_like",
       {integers},
       [](const Tensors& t) { at::randn_like(t[0]); }},
      {"normal, integer means",
       {integers, ones({5})},
       [](const Tensors& t) { at::normal(t[0], t[1]); }},
      {"normal, integers",
       {integers},
       [](const Tensors& t) { at::normal(t[0], 1.); }},
      {"rrelu_with_noise, noise of another shape",
       {ones({3}), ones({2, 3})},
       [](const Tensors& t) {
         at::Tensor noise = t[1];
         at::rrelu_with_noise(t[0], noise, .1, .3, true);
       }},
  });
}

// More categories than a float can tell apart: refused before they are read.
TEST(WrongArguments, OfMultinomialWithManyCategories) {
  ts::testing::with_mesh({2}, [](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const at::Tensor weights = ts::distribute_tensor(
        torch::empty({(1 << 24) + 1}, torch::device(torch::kMeta)),
        mesh,
        {ts::Shard(0)},
        {.same_on_all_ranks = true});
    EXPECT_NE(
        ts::testing::error_of([&] {
          at::multinomial(weights, 1);
        }).find("2^24"),
        std::string::npos);
  });
}

TEST(WrongArguments, OfOtherOps) {
  check_refused({
      {"max_pool1d of integers",
       {torch::ones({1, 2, 3}, torch::kLong)},
       [](const Tensors& t) { at::max_pool1d(t[0], 3); }},
      {"new_empty_strided, a negative stride",
       {ones({5})},
       [](const Tensors& t) { t[0].new_empty_strided({10}, {-7}); }},
      {"attention, a negative dropout",
       {ones({1, 2, 3, 4})},
       [](const Tensors& t) {
         at::scaled_dot_product_attention(t[0], t[0], t[0], {}, -1);
       }},
      {"bincount, a negative length",
       {torch::ones({5}, torch::kLong)},
       [](const Tensors& t) { at::bincount(t[0], {}, -2); }},
      {"norm of nothing, negative",
       {ones({0, 5})},
       [](const Tensors& t) { at::norm(t[0], -.5); }},
      {"norm over nothing, infinite",
       {ones({5, 0})},
       [](const Tensors& t) {
         at::linalg_vector_norm(
             t[0], std::numeric_limits<double>::infinity(), 1);
       }},
  });
}

// One device takes these, and reads what follows the gradient in memory.
TEST(WrongArguments, OfFusedSteps) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto weight = laid_out({ones({6, 2})}, mesh, true);
    for (const auto& wrong : {Tensors{ones({2, 2})}, Tensors{ones({})}}) {
      const auto grad = laid_out(wrong, mesh, true);
      const auto error = ts::testing::error_of([&] {
        at::_fused_sgd_(
            weight, grad, {}, 0., 0., .1, 0., false, false, true, {}, {});
      });
      EXPECT_NE(
          error.find("for a parameter of shape [6, 2]"), std::string::npos)
          << error;
    }
    const auto error = ts::testing::error_of([&] {
      at::_fused_sgd_(
          {weight[0], weight[0]},
          weight,
          {},
          0.,
          0.,
          .1,
          0.,
          false,
          false,
          true,
          {},
          {});
    });
    EXPECT_NE(error.find("for each parameter"), std::string::npos) << error;
  });
}

// The batch of a tolerance is one of the result's.
TEST(WrongArguments, PinvWithABatchOfTolerances) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    torch::manual_seed(0);
    const auto matrices = torch::randn({4, 5, 3}, torch::kDouble);
    const auto rtol = torch::full({2, 1}, 1e-3, torch::kDouble);
    const auto plain = at::linalg_pinv(matrices, {}, rtol);
    for (const bool sharded : {false, true}) {
      const auto t = laid_out({matrices, rtol}, mesh, sharded);
      const auto result = at::linalg_pinv(t[0], {}, t[1]);
      EXPECT_EQ(result.sizes(), plain.sizes());
      EXPECT_TRUE(ts::DTensor(result).full_tensor().allclose(plain));
    }
  });
}

// One sample, whose target is a list of one.
TEST(WrongArguments, MultiMarginLossOfOneSample) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto x = torch::arange(5, torch::kDouble);
    for (const auto& target :
         {torch::ones({1}, torch::kLong), torch::ones({}, torch::kLong)}) {
      const auto none = at::Reduction::None;
      const auto plain = at::multi_margin_loss(x, target, 1, 1, {}, none);
      const auto t = laid_out({x, target}, mesh, true);
      const auto loss = at::multi_margin_loss(t[0], t[1], 1, 1, {}, none);
      EXPECT_EQ(loss.sizes(), plain.sizes());
      EXPECT_TRUE(ts::DTensor(loss).full_tensor().equal(plain));
    }
  });
}

// Ops of a user's, with rules that take too much for granted.
TORCH_LIBRARY(wrong_arguments, library) {
  library.def("first_row(Tensor x) -> Tensor");
  library.def("sixth_size(Tensor x) -> Tensor");
  library.impl(
      "first_row",
      c10::DispatchKey::CPU,
      [](const at::Tensor& x) -> at::Tensor { return x.select(0, 0).clone(); });
}

std::string error_of_op(const char* name, const at::Tensor& x) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  return ts::testing::error_of([&] {
    torch::jit::Stack stack{x};
    op.callBoxed(&stack);
  });
}

TEST(WrongArguments, OfRulesOfUsers) {
  static const bool registered = [] {
    const auto columns = [](const ts::OpCall&) -> ts::Rows {
      return {{{ts::Shard(1)}, {ts::Shard(0)}}};
    };
    ts::register_rule(
        "wrong_arguments::first_row",
        {.rows = columns,
         .output_sizes = [](const ts::OpCall& call) -> std::vector<ts::Sizes> {
           return {call.tensor(0).sizes};
         }});
    ts::register_rule(
        "wrong_arguments::sixth_size",
        {.rows = columns,
         .output_sizes = [](const ts::OpCall& call) -> std::vector<ts::Sizes> {
           return {ts::Sizes{call.tensor(0).sizes[5]}};
         }});
    return true;
  }();
  ASSERT_TRUE(registered);
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const at::Tensor x = ts::distribute_tensor(
        ones({3, 8}),
        mesh,
        ts::Placements(mesh.ndim(), ts::Shard(1)),
        {.same_on_all_ranks = true});
    // Told at every call: a plan is kept when it has been carried out.
    for (int call = 0; call < 2; ++call) {
      EXPECT_NE(
          error_of_op("wrong_arguments::first_row", x)
              .find("[wrong_arguments.first_row.default] these arguments"),
          std::string::npos);
    }
    const auto error = error_of_op("wrong_arguments::sixth_size", x);
    EXPECT_NE(
        error.find(
            "[wrong_arguments.sixth_size.default] expected more dimensions or "
            "a longer list than [3, 8], which has no element 5"),
        std::string::npos)
        << error;
  });
}

// What a probe of the arguments draws is not missing from anybody's numbers.
TEST(WrongArguments, ChecksDrawNothing) {
  ts::testing::with_mesh({2}, [](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const at::Tensor mask = ts::distribute_tensor(
        torch::zeros({8}, torch::kComplexDouble),
        mesh,
        {ts::Shard(0)},
        {.same_on_all_ranks = true});
    torch::manual_seed(3);
    const auto before = torch::rand({4});
    torch::manual_seed(3);
    EXPECT_NE(ts::testing::error_of([&] { mask.random_(); }), "");
    EXPECT_TRUE(torch::rand({4}).equal(before));
  });
}

}  // namespace wrong_arguments_test
