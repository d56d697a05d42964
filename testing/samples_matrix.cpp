// Products of matrices and vectors.
#include "testing/samples.h"

namespace tessera::testing {

namespace {

// What is added may be smaller than the product: a row, a column, one number,
// with and without dimensions of size 1.
void add_broadcast_biases(Samples& samples) {
  const auto add = [&](const char* op,
                       const std::vector<Sizes>& biases,
                       const TensorRecipe& left,
                       const TensorRecipe& right) {
    for (const auto& bias : biases) {
      std::string shape;
      for (const int64_t size : bias) {
        shape += (shape.empty() ? "" : "x") + std::to_string(size);
      }
      samples.push_back(
          {op,
           {t(bias), left, right, 0.5, 2.0},
           "adds " + (shape.empty() ? "a number" : shape)});
    }
  };
  const std::vector<Sizes> vectors{{}, {1}};
  const std::vector<Sizes> matrices{{}, {1}, {3}, {1, 3}, {5, 1}, {1, 1}};
  add("aten::addmv", vectors, t({5, 6}), t({6}));
  add("aten::addmm", matrices, t({5, 6}), t({6, 3}));
  add("aten::addr", matrices, t({5}), t({3}));
  add("aten::addbmm", matrices, t({2, 5, 6}), t({2, 6, 3}));
  std::vector<Sizes> batches = matrices;
  batches.insert(batches.end(), {{5, 3}, {1, 5, 3}, {2, 1, 3}, {2, 1, 1}});
  add("aten::baddbmm", batches, t({2, 5, 6}), t({2, 6, 3}));
}

}  // namespace

void add_matrix_samples(Samples& samples) {
  add_with_variants(samples, {"aten::mm", {t({5, 6}), t({6, 3})}});
  samples.push_back({"aten::mm", {t({4, 8}), t({8, 12})}, "even"});
  samples.push_back({"aten::mm", {t({1, 3}), t({3, 5})}, "one row"});
  samples.push_back({"aten::mm", {t({4, 0}), t({0, 3})}, "no terms"});
  samples.push_back({"aten::mm", {t({0, 4}), t({4, 3})}, "no rows"});
  samples.push_back({"aten::mm", {floats({5, 6}), floats({6, 3})}, "float"});
  samples.push_back({"aten::mm", {ints({5, 6}), ints({6, 3})}, "int"});
  samples.push_back(
      {"aten::mm",
       {t({5, 6}).as(at::kComplexDouble), t({6, 3}).as(at::kComplexDouble)},
       "complex"});
  samples.push_back(
      {"aten::mm", {t({5, 6}).strided(), t({6, 3}).strided()}, "strided"});
  samples.push_back(
      {"aten::mm",
       {t({4, 6}).as(at::kBFloat16), t({6, 4}).as(at::kBFloat16)},
       "bfloat16"});
  add_with_variants(samples, {"aten::bmm", {t({3, 4, 5}), t({3, 5, 2})}});
  add_with_variants(samples, {"aten::mv", {t({5, 6}), t({6})}});
  add_with_variants(samples, {"aten::dot", {t({5}), t({5})}});
  samples.push_back(
      {"aten::vdot",
       {t({5}).as(at::kComplexDouble), t({5}).as(at::kComplexDouble)},
       "complex"});
  samples.push_back(
      {"aten::dot",
       {t({5}).as(at::kComplexDouble), t({5}).as(at::kComplexDouble)},
       "complex"});

  add_with_variants(
      samples, {"aten::addmm", {t({5, 3}), t({5, 6}), t({6, 3})}});
  samples.push_back(
      {"aten::addmm", {t({3}), t({5, 6}), t({6, 3}), 0.5, 2.0}, "bias"});
  samples.push_back(
      {"aten::addmm", {t({5, 1}), t({5, 6}), t({6, 3})}, "column"});
  samples.push_back({"aten::addmm", {t({}), t({4, 6}), t({6, 4})}, "number"});
  samples.push_back(
      {"aten::addmm", {t({4, 6}), t({4, 8}), t({8, 6}), 0, 1}, "no bias"});
  add_with_variants(samples, {"aten::addmv", {t({5}), t({5, 6}), t({6})}});
  add_with_variants(
      samples, {"aten::baddbmm", {t({3, 4, 2}), t({3, 4, 5}), t({3, 5, 2})}});
  samples.push_back(
      {"aten::baddbmm", {t({4, 2}), t({3, 4, 5}), t({3, 5, 2})}, "broadcast"});
  add_with_variants(
      samples, {"aten::addbmm", {t({4, 2}), t({3, 4, 5}), t({3, 5, 2})}});
  add_with_variants(samples, {"aten::addr", {t({5, 3}), t({5}), t({3})}});
  add_broadcast_biases(samples);

  samples.push_back({"aten::matmul", {t({2, 3, 4}), t({4, 5})}, "3-d by 2-d"});
  samples.push_back(
      {"aten::matmul", {t({2, 3, 4}), t({2, 4, 5})}, "3-d by 3-d"});
  samples.push_back(
      {"aten::matmul", {t({4, 1, 3, 4}), t({3, 4, 5})}, "broadcast"});
  samples.push_back({"aten::matmul", {t({5, 4}), t({4})}, "2-d by 1-d"});
  samples.push_back({"aten::matmul", {t({4}), t({4})}, "1-d by 1-d"});
  samples.push_back({"aten::matmul", {t({4}), t({4, 3})}, "1-d by 2-d"});
  samples.push_back({"aten::linear", {t({5, 6}), t({3, 6}), t({3})}});
  samples.push_back({"aten::linear", {t({2, 5, 6}), t({3, 6}), t({3})}, "3-d"});
  samples.push_back({"aten::linear", {t({5, 6}), t({3, 6})}, "no bias"});
  samples.push_back({"aten::outer", {t({5}), t({3})}});
}

}  // namespace tessera::testing
