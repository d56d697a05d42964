// Views and changes of shape.
#include "testing/samples.h"

namespace tessera::testing {

namespace {

void add_reshapes(Samples& samples) {
  const auto view = [&](const char* note, Sizes from, std::vector<int64_t> to) {
    for (const char* op : {"view", "reshape", "_unsafe_view", "view_copy"}) {
      samples.push_back(
          {std::string("aten::") + op, {t(from), dims(to)}, note});
    }
  };
  view("same", {4, 6}, {4, 6});
  view("merge", {4, 6}, {24});
  view("merge uneven", {5, 3}, {15});
  view("split", {24}, {4, 6});
  view("split uneven", {15}, {5, 3});
  view("split small", {6}, {2, 3});
  view("regroup", {4, 6, 2}, {4, 3, 4});
  view("regroup coprime", {4, 6}, {3, 8});
  view("infer", {5, 3, 4}, {5, -1});
  view("infer first", {4, 3, 4}, {-1, 4});
  view("ones", {4, 1, 6}, {4, 6, 1});
  view("to 0-dim", {1, 1}, {});
  view("from 0-dim", {}, {1});
  view("empty", {0, 3}, {3, 0});
  view("batch", {2, 3, 4, 5}, {6, 20});
  samples.push_back({"aten::view.dtype", {t({5, 3}), at::kLong}});
  samples.push_back({"aten::view.dtype", {t({5, 4}), at::kFloat}, "narrower"});
  samples.push_back({"aten::flatten.using_ints", {t({2, 3, 4}), 1, 2}});
  samples.push_back({"aten::flatten.using_ints", {t({4, 3, 4})}, "whole"});
  samples.push_back({"aten::unflatten.int", {t({5, 12}), 1, dims({3, 4})}});
  samples.push_back(
      {"aten::unflatten.int", {t({12, 5}), 0, dims({4, -1})}, "cut dim"});
  samples.push_back({"aten::ravel", {t({4, 6})}});
}

void add_moves(Samples& samples) {
  samples.push_back({"aten::t", {t({5, 3})}});
  samples.push_back({"aten::t", {t({5})}, "1-d"});
  samples.push_back({"aten::numpy_T", {t({5, 3, 4})}});
  samples.push_back({"aten::transpose.int", {t({5, 3, 4}), 0, -1}});
  samples.push_back({"aten::transpose.int", {t({}), 0, -1}, "0-dim"});
  samples.push_back({"aten::permute", {t({5, 3, 4}), dims({2, 0, 1})}});
  samples.push_back(
      {"aten::permute", {t({5, 3, 4}), dims({-1, 0, -2})}, "neg"});
  samples.push_back(
      {"aten::movedim.intlist", {t({5, 3, 4}), dims({0}), dims({2})}});
  samples.push_back({"aten::movedim.int", {t({5, 3, 4}), 2, 0}});
  samples.push_back({"aten::swapaxes", {t({5, 3}), 0, 1}});
  samples.push_back({"aten::expand", {t({5, 1}), dims({5, 4})}});
  samples.push_back({"aten::expand", {t({1, 3}), dims({2, 5, -1})}, "new dim"});
  samples.push_back({"aten::expand", {t({}), dims({4, 5})}, "0-dim"});
  samples.push_back({"aten::expand_as", {t({3}), t({5, 3})}});
  samples.push_back({"aten::broadcast_to", {t({3}), dims({5, 3})}});
  samples.push_back({"aten::squeeze", {t({5, 1, 3, 1})}});
  samples.push_back({"aten::squeeze.dim", {t({5, 1, 3}), 1}});
  samples.push_back({"aten::squeeze.dim", {t({5, 3}), 0}, "nothing"});
  samples.push_back({"aten::squeeze.dims", {t({5, 1, 3, 1}), dims({1, 2})}});
  samples.push_back({"aten::unsqueeze", {t({5, 3}), 0}});
  samples.push_back({"aten::unsqueeze", {t({5, 3}), -1}, "last"});
  samples.push_back({"aten::unsqueeze", {t({}), 0}, "0-dim"});
  samples.push_back({"aten::view_as_real", {t({5, 3}).as(at::kComplexDouble)}});
  samples.push_back({"aten::view_as_complex", {t({5, 3, 2})}});
}

void add_cuts(Samples& samples) {
  samples.push_back({"aten::slice.Tensor", {t({5, 3}), 0, 1, 4}});
  samples.push_back({"aten::slice.Tensor", {t({8, 3}), 0, 1, 7, 2}, "step"});
  samples.push_back({"aten::slice.Tensor", {t({5, 3}), 1, -2, 100}, "neg"});
  samples.push_back(
      {"aten::slice.Tensor", {t({5, 3}), 0, none(), none()}, "whole"});
  samples.push_back({"aten::slice.Tensor", {t({5, 3}), 0, 3, 3}, "nothing"});
  samples.push_back({"aten::narrow", {t({5, 3}), 0, 1, 3}});
  samples.push_back({"aten::select.int", {t({5, 3}), 0, 2}});
  samples.push_back({"aten::select.int", {t({5, 3, 4}), 1, -1}, "negative"});
  samples.push_back({"aten::split.Tensor", {t({5, 3}), 2, 0}});
  samples.push_back({"aten::split.Tensor", {t({5, 6}), 4, -1}, "last"});
  samples.push_back({"aten::split_with_sizes", {t({6, 3}), dims({1, 5}), 0}});
  samples.push_back({"aten::chunk", {t({5, 3}), 3, 0}});
  samples.push_back({"aten::chunk", {t({4, 6}), 2, 1}, "last"});
  samples.push_back({"aten::tensor_split.sections", {t({5, 3}), 2, 0}});
  samples.push_back({"aten::unbind.int", {t({3, 5}), 0}});
  samples.push_back({"aten::unfold", {t({5, 6}), 1, 3, 2}});
  samples.push_back({"aten::diagonal", {t({5, 3, 4}), 1, 0, 2}});
  samples.push_back(
      {"aten::slice_backward", {t({3, 3}), dims({5, 3}), 0, 1, 4, 1}});
  samples.push_back(
      {"aten::slice_backward", {t({5, 3}), dims({5, 3}), 0, 0, 9, 1}, "whole"});
  samples.push_back({"aten::select_backward", {t({3}), dims({5, 3}), 0, 2}});
  samples.push_back(
      {"aten::unfold_backward",
       {t({5, 2, 3}), dims({5, 6}), 1, 3, 2},
       "",
       true});
  samples.push_back(
      {"aten::diagonal_backward", {t({3}), dims({5, 3}), 0, 0, 1}});
  samples.push_back({"aten::slice_scatter", {t({5, 3}), t({3, 3}), 0, 1, 4}});
  samples.push_back({"aten::select_scatter", {t({5, 3}), t({3}), 0, 2}});
}

}  // namespace

void add_view_samples(Samples& samples) {
  add_reshapes(samples);
  add_moves(samples);
  add_cuts(samples);
}

}  // namespace tessera::testing
