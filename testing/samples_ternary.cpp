// Elementwise ops of three operands, gradients of activations, and the ops that
// optimizers are made of.
#include "testing/samples.h"

namespace tessera::testing {

namespace {

void add_activation_gradients(Samples& samples) {
  const auto g = t({5, 3});
  const auto x = t({5, 3});
  const auto add = [&](const char* op, std::vector<SampleArg> args) {
    samples.push_back({op, std::move(args), "", /*forward_only=*/true});
  };
  add("aten::sigmoid_backward", {g, x});
  add("aten::tanh_backward", {g, x});
  add("aten::silu_backward", {g, x});
  add("aten::gelu_backward", {g, x});
  add("aten::elu_backward", {g, 1.0, 1.0, 1.0, false, x});
  add("aten::threshold_backward", {g, x, 0});
  add("aten::hardtanh_backward", {g, x, -1.01, 1.01});
  add("aten::hardswish_backward", {g, x});
  add("aten::hardsigmoid_backward", {g, x});
  add("aten::hardshrink_backward", {g, x, 0.51});
  add("aten::softshrink_backward", {g, x, 0.51});
  add("aten::softplus_backward", {g, x, 1, 20});
  add("aten::leaky_relu_backward", {g, x, 0.1, false});
  add("aten::native_dropout_backward", {g, bools({5, 3}), 2.0});
  add("aten::log_sigmoid_backward", {g, x, t({5, 3}).positive()});
  add("aten::mish_backward", {g, x});
  add("aten::logit_backward", {g, t({5, 3}).with(Values::Probability), none()});
}

// What SGD with momentum, Adam and Adagrad do to their states.
void add_optimizer_ops(Samples& samples) {
  const auto state = t({6, 5});
  const auto positive = t({6, 5}).positive();
  const auto grad = t({6, 5});
  const auto add = [&](const char* op, std::vector<SampleArg> args) {
    samples.push_back({op, std::move(args), "optimizer", true});
  };
  add("aten::mul_.Scalar", {state, 0.9});
  add("aten::add_.Tensor", {state, grad, -0.1});
  add("aten::lerp_.Scalar", {state, grad, 0.1});
  add("aten::addcmul_", {positive, grad, grad, 0.1});
  add("aten::addcdiv_", {state, grad, positive, -0.1});
  add("aten::sqrt_", {positive});
  add("aten::add_.Scalar", {positive, 1e-8});
  add("aten::zero_", {state});
}

}  // namespace

void add_ternary_samples(Samples& samples) {
  const auto x = t({5, 3});
  const auto y = t({5, 3});
  const auto p = t({3}).positive();
  add_with_variants(samples, {"aten::where.self", {bools({5, 3}), x, y}});
  samples.push_back(
      {"aten::where.self", {bools({4, 1}), t({6}), t({4, 6})}, "broadcast"});
  samples.push_back(
      {"aten::where.self", {bools({5, 3}), x, ints({5, 3})}, "int and double"});
  samples.push_back({"aten::where.ScalarOther", {bools({5, 3}), x, 1.5}});
  samples.push_back({"aten::where.ScalarSelf", {bools({5, 3}), 1.5, y}});
  add_with_variants(
      samples, {"aten::masked_fill.Scalar", {x, bools({5, 3}), 7.0}});
  add_with_variants(
      samples, {"aten::masked_fill.Scalar", {x, bools({5, 3}), 0}, "zero"});
  // The value's gradient is a sum over the elements that the mask selects.
  Sample filled{"aten::masked_fill.Tensor", {x, bools({3}), t({})}};
  filled.refusal = "aten.masked_select.default";
  add_with_variants(samples, filled);
  add_with_variants(samples, {"aten::addcmul", {x, y, p, 0.5}});
  add_with_variants(samples, {"aten::addcdiv", {x, y, p, 0.5}});
  samples.push_back(
      {"aten::addcmul", {t({4, 1}), t({6}), t({4, 6})}, "broadcast"});
  add_with_variants(samples, {"aten::lerp.Scalar", {x, y, 0.3}});
  add_with_variants(samples, {"aten::lerp.Tensor", {x, y, t({3}).unit()}});
  add_with_variants(samples, {"aten::clamp.Tensor", {x, t({3}).unit(), p}});
  samples.push_back({"aten::clamp.Tensor", {x, none(), p}, "no lower bound"});
  add_activation_gradients(samples);
  add_optimizer_ops(samples);
}

}  // namespace tessera::testing
