// Ops that users seldom name: what others are made of, copies of views, and
// derivatives.
#include <ATen/core/Reduction.h>

#include "testing/samples.h"

namespace tessera::testing {

namespace {

void add_view_copies(Samples& samples) {
  const auto x = t({5, 3, 4});
  const auto z = t({5, 3}).as(at::kComplexDouble);
  const auto add = [&](const char* op, std::vector<SampleArg> args) {
    samples.push_back({op, std::move(args)});
  };
  add("aten::alias_copy", {x});
  add("aten::detach_copy", {x});
  add("aten::lift", {x});
  add("aten::lift_fresh", {x});
  add("aten::lift_fresh_copy", {x});
  add("aten::diagonal_copy", {x, 1, 0, 2});
  add("aten::expand_copy", {t({5, 1}), dims({5, 4})});
  add("aten::permute_copy", {x, dims({2, 0, 1})});
  add("aten::select_copy.int", {x, 1, 2});
  add("aten::slice_copy.Tensor", {x, 0, 1, 4});
  add("aten::split_copy.Tensor", {x, 2, 0});
  add("aten::split_with_sizes_copy", {x, dims({1, 4}), 0});
  add("aten::unsafe_split.Tensor", {x, 2, 0});
  add("aten::unsafe_split_with_sizes", {x, dims({1, 4}), 0});
  add("aten::squeeze_copy.dims", {t({5, 1, 3}), dims({1})});
  add("aten::t_copy", {t({5, 3})});
  add("aten::transpose_copy.int", {x, 0, 2});
  add("aten::unbind_copy.int", {x, 1});
  add("aten::unfold_copy", {t({5, 6}), 1, 3, 2});
  add("aten::unsqueeze_copy", {x, 1});
  add("aten::view_as_real_copy", {z});
  add("aten::view_as_complex_copy", {t({5, 3, 2})});
  add("aten::view_copy.dtype", {t({5, 3}), at::kLong});
  add("aten::_conj", {z});
  add("aten::_conj_copy", {z});
  add("aten::_neg_view", {x});
  add("aten::_neg_view_copy", {x});
  add("aten::_conj_physical", {z});
  add("aten::conj_physical_", {z});
  add("aten::_stack", {tensors({t({5, 3}), t({5, 3})}), 1});
}

void add_elementwise(Samples& samples) {
  const auto x = t({5, 3});
  const auto p = t({5, 3}).positive();
  const auto add = [&](const char* op, std::vector<SampleArg> args) {
    samples.push_back({op, std::move(args), "", /*forward_only=*/true});
  };
  add("aten::__irshift__.Tensor", {indices({5, 3}, 20), indices({3}, 4)});
  add("aten::__lshift__.Tensor", {indices({5, 3}, 20), indices({3}, 4)});
  add("aten::__rshift__.Tensor", {indices({5, 3}, 20), indices({3}, 4)});
  add("aten::_add_relu.Tensor", {x, t({5, 3})});
  add("aten::_add_relu_.Tensor", {x, t({5, 3})});
  add("aten::_dirichlet_grad", {p.with(Values::Probability), p, p});
  add("aten::_standard_gamma_grad", {p, t({5, 3}).positive()});
  add("aten::_prelu_kernel", {x, t({1, 3})});
  add("aten::_prelu_kernel_backward", {t({5, 3}), x, t({1, 3})});
  add("aten::log_sigmoid_forward", {x});
  add("aten::rrelu_with_noise_backward",
      {t({5, 3}), x, p, 0.1, 0.3, true, false});
  add("aten::glu_backward", {t({5, 3}), t({5, 6}), 1});
  add("aten::complex", {x, p});
  add("aten::polar", {p, x});
  add("aten::copy", {x, t({3})});
  add("aten::zero", {x});
  add("aten::equal", {x, t({5, 3})});
  add("aten::isin.Tensor_Scalar_out", {ints({5, 3}), 2});
  add("aten::min.other", {x, t({5, 3})});
  add("aten::max.out", {x, t({5, 3})});
  add("aten::min.out", {x, t({5, 3})});
  add("aten::max.unary_out", {x});
  add("aten::min.unary_out", {x});
  // Two tensors are written, which must lie alike.
  for (const char* op :
       {"max.dim_max",
        "min.dim_min",
        "median.dim_values",
        "nanmedian.dim_values"}) {
    samples.push_back({std::string("aten::") + op, {x, 0}, "", true, true});
  }
  add("aten::nanmedian.dim", {x, 0});
  add("aten::nanmedian", {x});
  add("aten::prod.int_out", {x, 0});
}

void add_softmax_and_norms(Samples& samples) {
  for (const char* op : {"_softmax", "_log_softmax"}) {
    samples.push_back({std::string("aten::") + op, {t({5, 3}), 1, false}});
  }
  samples.push_back({"aten::_safe_softmax", {t({5, 3}), 1}, "", true});
  const auto rows = t({5, 3, 4});
  samples.push_back(
      {"aten::native_layer_norm",
       {rows, dims({4}), t({4}), t({4}), 1e-5},
       "",
       true});
  samples.push_back(
      {"aten::native_layer_norm",
       {rows, dims({4}), none(), none(), 1e-5},
       "no weight",
       true});
  const SampleArg all(c10::IValue(c10::List<bool>({true, true, true})));
  const SampleArg input(c10::IValue(c10::List<bool>({true, false, false})));
  const auto moment = t({5, 3, 1}).positive();
  samples.push_back(
      {"aten::native_layer_norm_backward",
       {t({5, 3, 4}), rows, dims({4}), moment, moment, t({4}), t({4}), all},
       "",
       true});
  samples.push_back(
      {"aten::native_layer_norm_backward",
       {t({5, 3, 4}), rows, dims({4}), moment, moment, none(), none(), input},
       "no weight",
       true});
}

void add_loss_gradients(Samples& samples) {
  struct Reduction {
    int value;
    const char* name;
    TensorRecipe gradient;
  };
  const auto x = t({5, 3});
  const auto y = t({5, 3});
  const auto p = x.with(Values::Probability);
  for (const Reduction& r :
       {Reduction{at::Reduction::None, "none", t({5, 3})},
        Reduction{at::Reduction::Mean, "mean", t({})},
        Reduction{at::Reduction::Sum, "sum", t({})}}) {
    const auto add = [&](const char* op, std::vector<SampleArg> args) {
      samples.push_back({op, std::move(args), r.name, true});
    };
    add("aten::mse_loss_backward", {r.gradient, x, y, r.value});
    add("aten::smooth_l1_loss_backward", {r.gradient, x, y, r.value, 0.7});
    add("aten::huber_loss_backward", {r.gradient, x, y, r.value, 0.7});
    add("aten::soft_margin_loss_backward", {r.gradient, x, y, r.value});
    add("aten::binary_cross_entropy_backward",
        {r.gradient, p, y.with(Values::Probability), none(), r.value});
    const bool whole = r.value != at::Reduction::None;
    const auto target = indices({5}, 3);
    add("aten::nll_loss_forward", {x, target, t({3}).positive(), r.value, 1});
    add("aten::nll_loss_backward",
        {whole ? t({}) : t({5}),
         x,
         target,
         t({3}).positive(),
         r.value,
         1,
         t({}).positive()});
  }
}

}  // namespace

void add_part_samples(Samples& samples) {
  add_view_copies(samples);
  add_elementwise(samples);
  add_softmax_and_norms(samples);
  add_loss_gradients(samples);
  samples.push_back({"aten::addbmm_", {t({4, 2}), t({3, 4, 5}), t({3, 5, 2})}});
  samples.push_back({"aten::triu_", {t({5, 3})}, "", false, true});
  samples.push_back(
      {"aten::scatter_.value",
       {t({5, 3}), 1, indices({5, 2}, 3), 2.5},
       "",
       false,
       true});
  samples.push_back(
      {"aten::index_add", {t({5, 3}), 0, indices({4}, 5), t({4, 3})}});
  samples.push_back(
      {"aten::index_add",
       {t({5, 3}), 1, indices({2}, 3), t({5, 2}), 0.5},
       "last"});
  samples.push_back(
      {"aten::index_add_",
       {t({5, 3}), 0, indices({4}, 5), t({4, 3})},
       "",
       false,
       true});
}

}  // namespace tessera::testing
