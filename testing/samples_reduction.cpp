// Reductions, whole and by dimension, and what runs along a dimension.
#include "testing/samples.h"

namespace tessera::testing {

namespace {

void add_sums(Samples& samples) {
  for (const char* name : {"sum", "mean"}) {
    const std::string op = std::string("aten::") + name;
    samples.push_back({op, {t({5, 3})}, "whole"});
    samples.push_back({op, {t({})}, "0-dim"});
    samples.push_back({op, {t({6, 4}), at::kFloat}, "to float"});
    samples.push_back({op, {floats({5, 3}), at::kDouble}, "to double"});
    const std::string by_dim = op + ".dim";
    const std::string of =
        name == std::string("sum") ? by_dim + "_IntList" : by_dim;
    samples.push_back({of, {t({5, 3}), dims({0})}});
    samples.push_back({of, {t({4, 6}), dims({1}), true}, "keepdim"});
    samples.push_back({of, {t({5, 3, 4}), dims({0, 2})}, "two dims"});
    samples.push_back({of, {t({5, 3, 4}), dims({-1, 0}), true}, "negative"});
    samples.push_back({of, {t({5, 3}), none()}, "no dims"});
    samples.push_back({of, {t({5, 3}), dims({})}, "empty dims"});
    samples.push_back({of, {t({1, 5}), dims({0})}, "size 1"});
    samples.push_back({of, {t({5, 3}).strided(), dims({0})}, "strided"});
    samples.push_back(
        {of, {t({4, 6}).as(at::kBFloat16), dims({0})}, "bfloat16"});
    samples.push_back(
        {of, {t({5, 3}).as(at::kComplexDouble), dims({0})}, "complex"});
  }
  samples.push_back({"aten::sum", {t({0, 3})}, "empty"});
  samples.push_back({"aten::sum", {ints({5, 3})}, "int"});
  samples.push_back({"aten::sum", {bools({5, 3})}, "bool"});
  samples.push_back(
      {"aten::sum", {ints({5, 3}).as(at::kInt)}, "int32 to int64"});
  samples.push_back(
      {"aten::sum.dim_IntList",
       {ints({5, 3}), dims({0}), false, at::kDouble},
       "int to double"});
  samples.push_back({"aten::sum.IntList_out", {t({5, 3}), dims({0})}});
  samples.push_back({"aten::nansum", {t({5, 3}), dims({0})}});
  samples.push_back({"aten::count_nonzero", {ints({5, 3}, 1)}});
  samples.push_back(
      {"aten::count_nonzero.dim_IntList", {ints({5, 3}, 1), dims({0})}});
  samples.push_back({"aten::prod", {t({5, 3})}});
  samples.push_back({"aten::prod.dim_int", {t({5, 3}), 0}});
  samples.push_back({"aten::prod.dim_int", {ints({5, 3}), 1, true}, "int"});
  samples.push_back({"aten::trace", {t({5, 3})}, "", /*forward_only=*/true});
}

void add_extrema(Samples& samples) {
  for (const char* name : {"max", "min"}) {
    const std::string op = std::string("aten::") + name;
    samples.push_back({op, {t({5, 3})}});
    samples.push_back({op, {t({8})}, "1-d"});
    samples.push_back({op + ".dim", {t({5, 3}), 0}});
    samples.push_back({op + ".dim", {t({4, 6}), -1, true}, "keepdim"});
    const std::string values = std::string("aten::a") + name;
    samples.push_back({values, {t({5, 3}), dims({0})}});
    samples.push_back({values, {t({4, 6, 3}), dims({0, 1}), true}, "two dims"});
    samples.push_back({values, {t({5, 3})}, "whole"});
    samples.push_back({values, {ints({5, 3}), dims({0})}, "int"});
    const std::string position = std::string("aten::arg") + name;
    samples.push_back({position, {t({5, 3})}});
    samples.push_back({position, {t({5, 3}), 0}, "by dim"});
    samples.push_back({position, {t({4, 6}), 1, true}, "keepdim"});
  }
  samples.push_back({"aten::amax.out", {t({5, 3}), dims({0})}});
  samples.push_back({"aten::aminmax", {t({5, 3}), 0}});
  samples.push_back({"aten::median", {t({5, 3})}});
  samples.push_back({"aten::median.dim", {t({5, 3}), 0}});
  samples.push_back({"aten::mode", {t({5, 3}), 0}});
  samples.push_back({"aten::kthvalue", {t({5, 3}), 2, 0}});
  samples.push_back({"aten::topk", {t({4, 6}), 2, 1}});
  samples.push_back({"aten::sort", {t({5, 3}), 0}});
  samples.push_back({"aten::argsort", {t({5, 3}), 1}});
  samples.push_back({"aten::logsumexp", {t({5, 3}), dims({0})}});
  for (const char* op : {"any", "all"}) {
    const std::string name = std::string("aten::") + op;
    samples.push_back({name, {bools({5, 3})}});
    samples.push_back({name, {ints({5, 3}, 1)}, "int"});
    samples.push_back({name + ".dim", {bools({5, 3}), 0}});
    samples.push_back({name + ".dim", {bools({4, 6}), 1, true}, "keepdim"});
    samples.push_back({name + ".dims", {bools({5, 3, 4}), dims({0, 2})}});
  }
}

void add_moments_and_norms(Samples& samples) {
  for (const char* op : {"var", "std"}) {
    const std::string name = std::string("aten::") + op;
    samples.push_back({name, {t({5, 3})}, "whole"});
    samples.push_back({name + ".dim", {t({5, 3}), dims({0})}});
    samples.push_back(
        {name + ".dim", {t({4, 6}), dims({1}), false, true}, "biased"});
    samples.push_back({name + ".correction", {t({5, 3}), dims({0})}});
    samples.push_back({name + "_mean.correction", {t({5, 3}), dims({0})}});
  }
  const auto norm = [&](const char* note, std::vector<SampleArg> args) {
    samples.push_back({"aten::linalg_vector_norm", std::move(args), note});
  };
  norm("2", {t({5, 3}), 2});
  norm("1", {t({5, 3}), 1, dims({0})});
  norm("3", {t({4, 6}), 3, dims({1}), true});
  norm("0", {t({5, 3}), 0});
  norm("inf", {t({5, 3}), std::numeric_limits<double>::infinity()});
  norm("-inf", {t({5, 3}), -std::numeric_limits<double>::infinity()});
  samples.push_back({"aten::norm.Scalar", {t({5, 3}), 2}});
  samples.push_back(
      {"aten::norm.ScalarOpt_dim", {t({5, 3}), 2, dims({0})}, "by dim"});
  samples.push_back({"aten::frobenius_norm.dim", {t({5, 3}), dims({0, 1})}});
}

void add_scans(Samples& samples) {
  add_with_variants(samples, {"aten::cumsum", {t({5, 3}), 0}, "", false, true});
  samples.push_back({"aten::cumsum", {ints({5, 3}), 1}, "int"});
  add_with_variants(
      samples, {"aten::cumprod", {t({5, 3}), 0}, "", false, true});
  samples.push_back({"aten::cummax", {t({5, 3}), 0}});
  samples.push_back({"aten::cummin", {t({5, 3}), 0}});
  samples.push_back({"aten::logcumsumexp", {t({5, 3}), 0}});
}

}  // namespace

void add_reduction_samples(Samples& samples) {
  add_sums(samples);
  add_extrema(samples);
  add_moments_and_norms(samples);
  add_scans(samples);
}

}  // namespace tessera::testing
