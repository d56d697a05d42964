// Elementwise ops of one and two operands.
#include "testing/samples.h"

namespace tessera::testing {

namespace {

struct UnaryFamily {
  Values values;
  std::vector<const char*> names;
};

const std::vector<UnaryFamily>& unary_families() {
  static const std::vector<UnaryFamily> families = {
      {Values::Signed,
       {"abs",
        "absolute",
        "neg",
        "negative",
        "sign",
        "sgn",
        "exp",
        "exp2",
        "expm1",
        "sin",
        "cos",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "arcsinh",
        "atan",
        "arctan",
        "sigmoid",
        "relu",
        "relu6",
        "silu",
        "gelu",
        "selu",
        "elu",
        "celu",
        "softplus",
        "mish",
        "hardswish",
        "hardsigmoid",
        "hardtanh",
        "leaky_relu",

        "floor",
        "ceil",
        "round",
        "trunc",
        "fix",
        "frac",
        "square",
        "erf",
        "erfc",
        "sinc",
        "i0",
        "positive",
        "logical_not",
        "isnan",
        "isinf",
        "isfinite",
        "isposinf",
        "isneginf",
        "signbit",
        "nan_to_num",
        "deg2rad",
        "rad2deg",
        "hardshrink",
        "softshrink",
        "special_entr",
        "special_i0e",
        "special_i1",
        "special_i1e",
        "special_ndtr",
        "special_erfcx",
        "special_log_ndtr",
        "special_bessel_j0",
        "special_expit"}},
      {Values::Unit, {"tan", "asin", "acos", "atanh", "erfinv", "arcsin"}},
      {Values::Positive,
       {"log",
        "log2",
        "log10",
        "log1p",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "lgamma",
        "digamma"}},
      {Values::AboveOne, {"acosh", "arccosh"}},
      {Values::Probability, {"logit", "special_ndtri"}},
  };
  return families;
}

void add_unary_with_arguments(Samples& samples) {
  const auto x = t({5, 3});
  add_with_variants(samples, {"aten::mul.Scalar", {x, 1.5}});
  add_with_variants(samples, {"aten::div.Scalar", {x, 1.5}});
  add_with_variants(samples, {"aten::add.Scalar", {x, 1.5, 2}});
  add_with_variants(samples, {"aten::sub.Scalar", {x, 1.5}});
  add_with_variants(samples, {"aten::rsub.Scalar", {x, 1.5}});
  add_with_variants(samples, {"aten::pow.Tensor_Scalar", {x, 3}});
  samples.push_back({"aten::pow.Scalar", {1.5, x}});
  add_with_variants(samples, {"aten::remainder.Scalar", {x, 0.7}});
  add_with_variants(samples, {"aten::fmod.Scalar", {x, 0.7}});
  add_with_variants(samples, {"aten::floor_divide.Scalar", {x, 0.7}});
  add_with_variants(samples, {"aten::div.Scalar_mode", {x, 0.7, "trunc"}});
  add_with_variants(samples, {"aten::threshold", {x, 0.3, -1.0}});
  samples.push_back({"aten::polygamma", {1, x.positive()}});
  add_with_variants(samples, {"aten::round.decimals", {x, 1}});
  add_with_variants(samples, {"aten::clamp_min", {x, -0.51}});
  add_with_variants(samples, {"aten::clamp_max", {x, 0.51}});
  add_with_variants(samples, {"aten::clamp", {x, -0.51, 0.51}});
  add_with_variants(samples, {"aten::gelu", {x, "tanh"}, "tanh"});
  add_with_variants(samples, {"aten::bitwise_not", {ints({5, 3})}});
  add_with_variants(samples, {"aten::bitwise_not", {bools({5, 3})}, "bool"});
  add_with_variants(samples, {"aten::logical_not", {bools({5, 3})}, "bool"});
  samples.push_back({"aten::log_sigmoid", {x}});
  samples.push_back({"aten::isin.Tensor_Scalar", {ints({5, 3}), 2}});
  for (const char* op : {"eq", "ne", "lt", "le", "gt", "ge"}) {
    add_with_variants(
        samples, {std::string("aten::") + op + ".Scalar", {ints({5, 3}), 1}});
  }
  for (const char* op : {"bitwise_and", "bitwise_or", "bitwise_xor"}) {
    samples.push_back(
        {std::string("aten::") + op + ".Scalar", {ints({5, 3}), 6}});
  }
}

void add_unary_dtypes(Samples& samples) {
  for (const char* op : {"neg", "abs", "sgn", "exp", "relu", "sigmoid"}) {
    const std::string name = std::string("aten::") + op;
    samples.push_back({name, {floats({6, 4})}, "float"});
    samples.push_back({name, {t({6, 4}).as(at::kBFloat16)}, "bfloat16"});
  }
  for (const char* op : {"neg", "abs", "exp", "conj_physical", "angle"}) {
    samples.push_back(
        {std::string("aten::") + op,
         {t({5, 3}).as(at::kComplexDouble)},
         "complex"});
  }
  // Integers become floating-point numbers.
  samples.push_back({"aten::exp", {ints({5, 3})}, "int"});
  samples.push_back({"aten::neg", {ints({5, 3})}, "int"});
  samples.push_back({"aten::rad2deg", {ints({5, 3})}, "int"});
  samples.push_back({"aten::abs", {ints({5})}, "int, 1-d"});
  samples.push_back({"aten::mul.Scalar", {ints({5, 3}), 3}, "int by int"});
  samples.push_back({"aten::mul.Scalar", {ints({5, 3}), 1.5}, "int by double"});
  samples.push_back({"aten::div.Scalar", {ints({5, 3}), 2}, "int"});
  samples.push_back({"aten::neg_", {ints({5, 3})}, "int"});
  for (const auto& shape :
       {Sizes{}, Sizes{1}, Sizes{0}, Sizes{2, 0, 3}, Sizes{3, 1, 5}}) {
    samples.push_back({"aten::exp", {t(shape)}, "shape"});
    samples.push_back({"aten::neg", {t(shape)}, "shape"});
    samples.push_back({"aten::relu", {t(shape)}, "shape"});
  }
  samples.push_back({"aten::exp", {t({5, 4, 3}).strided()}, "strided"});
  samples.push_back({"aten::relu", {t({5, 4, 3}).strided()}, "strided"});
  samples.push_back({"aten::neg_", {t({5, 4}).strided()}, "strided"});
}

void add_arithmetic(Samples& samples) {
  for (const char* op : {"add", "sub", "mul", "div"}) {
    const std::string name = std::string("aten::") + op + ".Tensor";
    add_with_variants(samples, {name, {t({5, 3}), t({5, 3})}});
    samples.push_back({name, {t({4, 6}), t({6})}, "broadcast 1-d"});
    samples.push_back({name, {t({6}), t({5, 6})}, "broadcast first"});
    samples.push_back({name, {t({4, 1}), t({1, 6})}, "broadcast both"});
    samples.push_back({name, {t({3, 4, 1}), t({5})}, "broadcast 3-d"});
    samples.push_back({name, {t({4, 6}), t({})}, "0-dim"});
    samples.push_back({name, {t({0, 3}), t({1, 3})}, "empty"});
    samples.push_back({name, {ints({4, 6}), t({6})}, "int and double"});
    samples.push_back({name, {floats({4, 6}), t({4, 6})}, "float and double"});
    samples.push_back(
        {name, {floats({4, 6}), t({})}, "float and 0-dim double"});
    samples.push_back(
        {name,
         {t({4, 6}).as(at::kBFloat16), floats({6})},
         "bfloat16 and float"});
    samples.push_back(
        {name,
         {t({5, 3}).as(at::kComplexDouble), t({5, 3})},
         "complex and real"});
    samples.push_back(
        {name, {t({5, 4, 3}).strided(), t({5, 4, 3})}, "strided"});
    const std::string in_place = std::string("aten::") + op + "_.Tensor";
    samples.push_back({in_place, {t({4, 6}), t({6})}, "broadcast"});
    samples.push_back({in_place, {floats({4, 6}), t({4, 6})}, "to float"});
    samples.push_back({in_place, {t({4, 6}), ints({4, 6}, 4)}, "int"});
  }
  samples.push_back({"aten::add.Tensor", {t({5, 3}), t({5, 3}), 3}, "alpha"});
  samples.push_back({"aten::sub.Tensor", {t({5, 3}), t({3}), 0.5}, "alpha"});
  samples.push_back({"aten::rsub.Tensor", {t({5, 3}), t({3}), 2}, "alpha"});
  samples.push_back({"aten::add.Tensor", {ints({5, 3}), ints({5, 3})}, "int"});
  samples.push_back({"aten::mul.Tensor", {ints({5, 3}), ints({5, 3})}, "int"});
  samples.push_back({"aten::mul.Tensor", {bools({5, 3}), t({5, 3})}, "mask"});
  samples.push_back(
      {"aten::add.Tensor", {bools({5, 3}), bools({5, 3})}, "bool"});
  for (const char* mode : {"trunc", "floor"}) {
    add_with_variants(
        samples,
        {"aten::div.Tensor_mode", {t({5, 3}), t({5, 3}).positive(), mode}});
    samples.push_back(
        {"aten::div.out_mode", {t({5, 3}), t({5, 3}).positive(), mode}});
  }
}

void add_other_binary(Samples& samples) {
  const auto x = t({5, 3});
  const auto p = t({3}).positive();
  for (const char* op :
       {"maximum",
        "minimum",
        "fmax",
        "fmin",
        "atan2",
        "hypot",
        "copysign.Tensor",
        "fmod.Tensor",
        "remainder.Tensor",
        "floor_divide",
        "nextafter",
        "logaddexp",
        "logaddexp2",
        "heaviside",
        "true_divide.Tensor"}) {
    add_with_variants(samples, {std::string("aten::") + op, {x, p}});
  }
  add_with_variants(
      samples, {"aten::pow.Tensor_Tensor", {t({5, 3}).positive(), t({3})}});
  add_with_variants(samples, {"aten::xlogy.Tensor", {x, t({5, 3}).positive()}});
  samples.push_back({"aten::maximum", {ints({5, 3}), ints({3})}, "int"});
  samples.push_back({"aten::max.other", {x, t({5, 3})}});
  samples.push_back({"aten::clamp_min.Tensor", {x, t({3})}});
  for (const char* op : {"eq", "ne", "lt", "le", "gt", "ge"}) {
    add_with_variants(
        samples,
        {std::string("aten::") + op + ".Tensor",
         {ints({5, 3}, 2), ints({3}, 2)}});
  }
  for (const char* op :
       {"bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_xor.Tensor"}) {
    add_with_variants(
        samples, {std::string("aten::") + op, {ints({5, 3}), ints({5, 3})}});
    samples.push_back(
        {std::string("aten::") + op, {bools({4, 6}), bools({6})}, "bool"});
  }
  for (const char* op :
       {"bitwise_left_shift.Tensor", "bitwise_right_shift.Tensor"}) {
    add_with_variants(
        samples,
        {std::string("aten::") + op, {indices({5, 3}, 20), indices({3}, 4)}});
  }
  for (const char* op : {"gcd", "lcm"}) {
    add_with_variants(
        samples, {std::string("aten::") + op, {ints({5, 3}, 12), ints({3})}});
  }
  for (const char* op : {"logical_and", "logical_or", "logical_xor"}) {
    add_with_variants(
        samples, {std::string("aten::") + op, {bools({5, 3}), bools({5, 3})}});
    samples.push_back(
        {std::string("aten::") + op, {ints({5, 3}, 1), bools({3})}, "int"});
  }
}

}  // namespace

void add_unary_samples(Samples& samples) {
  for (const auto& family : unary_families()) {
    for (const char* name : family.names) {
      add_with_variants(
          samples,
          {std::string("aten::") + name, {t({5, 3}).with(family.values)}});
    }
  }
  add_unary_with_arguments(samples);
  add_unary_dtypes(samples);
}

void add_binary_samples(Samples& samples) {
  add_arithmetic(samples);
  add_other_binary(samples);
}

}  // namespace tessera::testing
