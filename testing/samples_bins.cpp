// Counting, searching, reductions of segments, losses by sample.
#include <ATen/core/Reduction.h>

#include "testing/samples.h"

namespace tessera::testing {

namespace {

void add_counts(Samples& samples) {
  const auto x = t({5, 3});
  samples.push_back({"aten::histc", {x, 4, -1.5, 1.5}, "", true});
  samples.push_back({"aten::histc", {x, 4}, "bounds of the values", true});
  samples.push_back(
      {"aten::histogram.bin_ct",
       {x, 4, c10::IValue(std::vector<double>{-1.5, 1.5})},
       "",
       true});
  samples.push_back(
      {"aten::histogram.bins_tensor",
       {x, t({4}).with(Values::Ascending), x.positive()},
       "",
       true});
  samples.push_back({"aten::bincount", {indices({8}, 5)}, "", true});
  samples.push_back(
      {"aten::bincount", {indices({8}, 5), t({8}), 7}, "weights", true});
  const auto edges = t({4}).with(Values::Ascending);
  samples.push_back({"aten::bucketize.Tensor", {x, edges}, "", true});
  samples.push_back({"aten::searchsorted.Tensor", {edges, x}, "", true});
  samples.push_back(
      {"aten::searchsorted.Tensor",
       {t({5, 4}).with(Values::Ascending), x},
       "rows",
       true});
  samples.push_back(
      {"aten::isin.Tensor_Tensor", {ints({5, 3}), ints({4})}, "", true});
}

void add_segments(Samples& samples) {
  for (const char* reduce : {"sum", "max"}) {
    samples.push_back(
        {"aten::segment_reduce",
         {t({8, 3, 5}), reduce, none(), none(), offsets(4, 8)},
         reduce});
  }
  samples.push_back(
      {"aten::_segment_reduce_backward",
       {t({3, 3, 5}), t({3, 3, 5}), t({8, 3, 5}), "sum", none(), offsets(4, 8)},
       "",
       true});
  samples.push_back({"aten::renorm", {t({5, 3, 4}), 2.0, 1, 0.5}});
  samples.push_back({"aten::renorm_", {t({5, 3, 4}), 2.0, 1, 0.5}});
}

void add_places(Samples& samples) {
  const auto x = t({5, 4});
  const auto places = indices({3}, 4).with(Values::Permutation);
  samples.push_back({"aten::index_fill.int_Scalar", {x, 1, places, 2.5}});
  Sample filled{"aten::index_fill.int_Tensor", {x, 1, places, t({})}};
  filled.refusal = "aten._unique.default";  // by its formula, outside the mesh
  samples.push_back(filled);
  samples.push_back({"aten::index_fill_.int_Scalar", {x, 1, places, 2.5}});
  samples.push_back({"aten::index_copy", {x, 1, places, t({5, 3})}});
  samples.push_back({"aten::index_copy_", {x, 1, places, t({5, 3})}});
  for (const char* reduce : {"amax", "mean"}) {
    samples.push_back(
        {"aten::index_reduce", {x, 1, places, t({5, 3}), reduce}, reduce});
  }
  samples.push_back({"aten::index_reduce_", {x, 1, places, t({5, 3}), "prod"}});
  for (const char* reduce : {"sum", "amax", "mean"}) {
    samples.push_back(
        {"aten::scatter_reduce.two",
         {x, 1, indices({5, 3}, 4), t({5, 3}), reduce},
         reduce});
  }
  samples.push_back(
      {"aten::scatter_reduce_.two",
       {x, 1, indices({5, 3}, 4), t({5, 3}), "prod"}});
  samples.push_back({"aten::take", {x, indices({6, 3}, 20)}});
  samples.push_back({"aten::diag_embed", {t({5, 3, 4})}});
  samples.push_back({"aten::diag_embed", {t({5, 3}), 1, 0, 2}, "offset"});
  samples.push_back(
      {"aten::diagonal_scatter", {t({5, 4, 6}), t({6, 4}), 0, 0, 1}});
}

void add_losses_by_sample(Samples& samples) {
  struct Reduction {
    int value;
    const char* name;
  };
  const auto scores = t({5, 3});
  const auto image = t({4, 3, 2, 5});
  for (const Reduction& r :
       {Reduction{at::Reduction::None, "none"},
        Reduction{at::Reduction::Mean, "mean"},
        Reduction{at::Reduction::Sum, "sum"}}) {
    const auto add = [&](const char* op, std::vector<SampleArg> args) {
      samples.push_back({op, std::move(args), r.name});
    };
    add("aten::multi_margin_loss",
        {scores, indices({5}, 3), 1, 0.7, t({3}).positive(), r.value});
    add("aten::multilabel_margin_loss", {scores, indices({5, 3}, 3), r.value});
    add("aten::nll_loss2d",
        {image, indices({4, 2, 5}, 3), t({3}).positive(), r.value});
    const auto add_backward = [&](const char* op, std::vector<SampleArg> args) {
      samples.push_back({op, std::move(args), r.name, true});
    };
    const bool each = r.value == at::Reduction::None;
    add_backward(
        "aten::multi_margin_loss_backward",
        {each ? t({5}) : t({}),
         scores,
         indices({5}, 3),
         1,
         0.7,
         t({3}).positive(),
         r.value});
    add_backward(
        "aten::multilabel_margin_loss_backward",
        {each ? t({5}) : t({}),
         scores,
         indices({5, 3}, 3),
         r.value,
         t({5, 3}).with(Values::Probability)});
    add_backward(
        "aten::multilabel_margin_loss_forward",
        {scores, indices({5, 3}, 3), r.value});
    add_backward(
        "aten::nll_loss2d_forward",
        {image, indices({4, 2, 5}, 3), none(), r.value, -100});
    add_backward(
        "aten::nll_loss2d_backward",
        {each ? t({4, 2, 5}) : t({}),
         image,
         indices({4, 2, 5}, 3),
         none(),
         r.value,
         -100,
         t({}).positive()});
  }
}

// Targets of different lengths, one of them empty: as rows of a matrix, and one
// after the other. Class 4 is the blank.
void add_sequence_losses(Samples& samples) {
  const auto log_probs = t({6, 4, 5});
  const auto inputs = dims({6, 5, 6, 4});
  const auto targets = dims({2, 3, 0, 1});
  const auto rows = indices({4, 3}, 4);
  const char* op = "aten::ctc_loss.IntList";
  for (const int reduction : {0, 1, 2}) {
    samples.push_back(
        {op,
         {log_probs, rows, inputs, targets, 4, reduction, false},
         std::to_string(reduction)});
  }
  samples.push_back(
      {op,
       {log_probs, indices({6}, 4), inputs, targets, 4, 1, true},
       "one after the other"});
  samples.push_back(
      {"tessera::ctc_loss_backward",
       {t({4}),
        log_probs,
        rows,
        t({4}).positive(),
        t({4, 6, 7}),
        inputs,
        targets,
        4,
        false,
        3},
       "",
       true});
}

}  // namespace

void add_bin_samples(Samples& samples) {
  add_sequence_losses(samples);
  add_counts(samples);
  add_segments(samples);
  add_places(samples);
  add_losses_by_sample(samples);
}

}  // namespace tessera::testing
