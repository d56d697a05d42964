// Copies and casts, tensors made after another, and ops that put tensors
// together or pick elements.
#include "testing/samples.h"

namespace tessera::testing {

namespace {

void add_casts(Samples& samples) {
  const auto cast =
      [&](const char* note, TensorRecipe from, at::ScalarType to) {
        samples.push_back({"aten::_to_copy", {std::move(from), to}, note});
      };
  cast("double to float", t({5, 3}), at::kFloat);
  cast("float to double", floats({5, 3}), at::kDouble);
  cast("float to bfloat16", floats({6, 4}), at::kBFloat16);
  cast("bfloat16 to float", t({6, 4}).as(at::kBFloat16), at::kFloat);
  cast("double to int", t({5, 3}), at::kLong);
  cast("int to double", ints({5, 3}), at::kDouble);
  cast("double to bool", t({5, 3}), at::kBool);
  cast("bool to double", bools({5, 3}), at::kDouble);
  cast("double to complex", t({5, 3}), at::kComplexDouble);
  cast("no change", t({5, 3}), at::kDouble);
  samples.push_back({"aten::to.dtype", {t({5, 3}), at::kFloat}});
  samples.push_back({"aten::to.dtype", {t({5, 3}), at::kDouble}, "no change"});
  samples.push_back({"aten::to.other", {t({5, 3}), floats({2})}});
}

}  // namespace

void add_copy_samples(Samples& samples) {
  add_casts(samples);
  samples.push_back({"aten::clone", {t({5, 3})}});
  samples.push_back({"aten::clone", {t({5, 4, 3}).strided()}, "strided"});
  samples.push_back({"aten::clone", {bools({5, 3})}, "bool"});
  samples.push_back({"aten::contiguous", {t({5, 4}).strided()}, "strided"});
  samples.push_back({"aten::detach", {t({5, 3})}, "", true});
  samples.push_back({"aten::alias", {t({5, 3})}});
  samples.push_back({"aten::copy_", {t({5, 3}), t({5, 3})}});
  samples.push_back({"aten::copy_", {t({5, 3}), t({3})}, "broadcast"});
  samples.push_back(
      {"aten::copy_", {t({5, 3}), ints({5, 3})}, "int to double"});
  samples.push_back({"aten::copy_", {floats({6, 4}), t({6, 4})}, "to float"});
  samples.push_back(
      {"aten::copy_", {t({5, 4}).strided(), t({5, 4})}, "strided"});
  samples.push_back({"aten::fill_.Scalar", {t({5, 3}), 1.5}});
  samples.push_back({"aten::fill_.Tensor", {t({5, 3}), t({})}});
  samples.push_back({"aten::fill.Scalar", {t({5, 3}), 1.5}});
  samples.push_back({"aten::zero_", {t({5, 3})}});
  samples.push_back({"aten::zeros_like", {t({5, 3})}});
  samples.push_back({"aten::zeros_like", {t({5, 4}).strided()}, "strided"});
  samples.push_back({"aten::ones_like", {t({5, 3}), at::kLong}});
  samples.push_back({"aten::full_like", {t({5, 3}), 2.5}});
  samples.push_back({"aten::new_zeros", {t({5, 3}), dims({5, 3})}});
  samples.push_back({"aten::new_zeros", {t({5, 3}), dims({4})}, "other"});
  samples.push_back({"aten::new_ones", {t({5, 3}), dims({2, 2})}});
  samples.push_back({"aten::new_full", {t({5, 3}), dims({5, 3}), 2.5}});
}

void add_join_samples(Samples& samples) {
  const auto a = t({5, 3});
  const auto b = t({2, 3});
  samples.push_back({"aten::cat", {tensors({a, b}), 0}});
  samples.push_back({"aten::cat", {tensors({a, t({5, 4})}), -1}, "last"});
  samples.push_back({"aten::cat", {tensors({a, t({0})}), 0}, "skipped"});
  samples.push_back({"aten::cat", {tensors({a, t({5, 3}), a}), 1}, "three"});
  samples.push_back(
      {"aten::cat", {tensors({a, floats({5, 3})}), 0}, "double and float"});
  samples.push_back({"aten::cat", {tensors({a, ints({5, 3})}), 1}, "and int"});
  samples.push_back({"aten::stack", {tensors({a, t({5, 3})}), 0}});
  samples.push_back({"aten::stack", {tensors({a, t({5, 3})}), -1}, "last"});
  samples.push_back({"aten::hstack", {tensors({a, t({5, 2})})}});
  samples.push_back({"aten::repeat", {a, dims({1, 2})}});
  samples.push_back({"aten::repeat", {a, dims({2, 1, 3})}, "new dim"});
  samples.push_back({"aten::tile", {a, dims({2})}});
  samples.push_back({"aten::flip", {a, dims({0})}});
  samples.push_back({"aten::flip", {a, dims({})}, "nothing"});
  samples.push_back({"aten::roll", {a, dims({2}), dims({0})}});
  samples.push_back({"aten::roll", {a, dims({2})}, "flattened"});
  samples.push_back({"aten::constant_pad_nd", {a, dims({1, 2})}});
  samples.push_back({"aten::constant_pad_nd", {a, dims({1, 2}), 3.0}, "3"});
  for (const char* op : {"tril", "triu"}) {
    samples.push_back({std::string("aten::") + op, {a}});
    samples.push_back({std::string("aten::") + op, {t({3, 4, 4}), 1}, "batch"});
  }
  samples.push_back({"aten::tril_", {a}, "", false, true});

  samples.push_back({"aten::index_select", {a, 0, indices({4}, 5)}});
  samples.push_back({"aten::index_select", {a, 1, indices({2}, 3)}, "last"});
  samples.push_back({"aten::gather", {a, 0, indices({4, 3}, 5)}});
  samples.push_back({"aten::gather", {a, 1, indices({5, 2}, 3)}, "last"});
  samples.push_back({"aten::gather", {a, 0, indices({4, 2}, 5)}, "smaller"});
  samples.push_back({"tessera::gather_part", {a, 0, indices({4, 3}, 5)}});
  samples.push_back(
      {"tessera::gather_part", {a, 1, indices({5, 2}, 3)}, "last"});
  samples.push_back(
      {"tessera::gather_part_backward", {t({4, 3}), 0, indices({4, 3}, 5), a}});
  samples.push_back(
      {"aten::scatter.src", {a, 1, indices({5, 1}, 3), t({5, 1})}});
  samples.push_back({"aten::scatter.value", {a, 1, indices({5, 2}, 3), 2.5}});
  samples.push_back(
      {"aten::scatter_add", {a, 0, indices({4, 3}, 5), t({4, 3})}});
  samples.push_back(
      {"aten::scatter_add", {a, 1, indices({5, 2}, 3), t({5, 2})}, "last"});
  samples.push_back(
      {"aten::scatter_add_",
       {a, 0, indices({4, 3}, 5), t({4, 3})},
       "",
       false,
       true});
}

}  // namespace tessera::testing
