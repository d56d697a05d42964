// What layers and losses are made of.
#include <ATen/core/Reduction.h>

#include "testing/samples.h"

namespace tessera::testing {

namespace {

void add_losses(Samples& samples) {
  struct Reduction {
    int value;
    const char* name;
  };
  const auto x = t({5, 3});
  const auto y = t({5, 3});
  const auto p = x.with(Values::Probability);
  const auto q = y.with(Values::Probability);
  for (const Reduction& r :
       {Reduction{at::Reduction::None, "none"},
        Reduction{at::Reduction::Mean, "mean"},
        Reduction{at::Reduction::Sum, "sum"}}) {
    const auto add = [&](const char* op, std::vector<SampleArg> args) {
      samples.push_back({op, std::move(args), r.name});
    };
    add("aten::mse_loss", {x, y, r.value});
    add("aten::l1_loss", {x, y, r.value});
    add("aten::smooth_l1_loss", {x, y, r.value, 0.7});
    add("aten::huber_loss", {x, y, r.value, 0.7});
    add("aten::soft_margin_loss", {x, y, r.value});
    add("aten::kl_div", {x, q, r.value});
    add("aten::binary_cross_entropy", {p, q, none(), r.value});
    add("aten::binary_cross_entropy", {p, q, t({3}).positive(), r.value});
    add("aten::binary_cross_entropy_with_logits",
        {x, q, none(), none(), r.value});
    add("aten::binary_cross_entropy_with_logits",
        {x, q, t({3}).positive(), t({3}).positive(), r.value});
    add("aten::nll_loss", {x, indices({5}, 3), none(), r.value});
    add("aten::nll_loss", {x, indices({5}, 3), t({3}).positive(), r.value});
    samples.push_back(
        {"aten::nll_loss",
         {t({8, 4}), indices({8}, 4), none(), r.value, 1},
         std::string(r.name) + ", ignore_index"});
    add("aten::cross_entropy_loss", {x, indices({5}, 3), none(), r.value});
    samples.push_back(
        {"aten::cross_entropy_loss",
         {t({8, 4}), indices({8}, 4), none(), r.value, -100, 0.1},
         std::string(r.name) + ", smoothed"});
    Sample weighted{
        "aten::cross_entropy_loss",
        {t({8, 4}), indices({8}, 4), t({4}).positive(), r.value, -100, 0.1},
        std::string(r.name) + ", smoothed and weighted"};
    weighted.refusal = "aten.masked_select.default";
    samples.push_back(weighted);
    add("aten::cosine_embedding_loss",
        {x, y, t({5}).with(Values::Signed), 0.1, r.value});
    add("aten::margin_ranking_loss", {x, y, t({5, 3}), 0.1, r.value});
  }
}

}  // namespace

void add_nn_samples(Samples& samples) {
  for (const char* op : {"softmax", "log_softmax"}) {
    const std::string name = std::string("aten::") + op + ".int";
    samples.push_back({name, {t({5, 3}), -1}});
    samples.push_back({name, {t({4, 6, 3}), 1}, "middle"});
    samples.push_back({name, {floats({5, 3}), 0, at::kDouble}, "to double"});
    samples.push_back(
        {std::string("aten::_") + op + "_backward_data",
         {t({5, 3}), t({5, 3}).with(Values::Probability), 1, at::kDouble},
         "",
         true});
  }
  samples.push_back(
      {"aten::layer_norm", {t({5, 4}), dims({4}), t({4}), t({4})}});
  samples.push_back({"aten::layer_norm", {t({5, 4}), dims({4})}, "no weight"});
  samples.push_back(
      {"aten::layer_norm",
       {t({3, 5, 4}), dims({5, 4}), t({5, 4}), t({5, 4})},
       "two dims"});
  samples.push_back({"aten::embedding", {t({7, 6}), indices({5}, 7)}, "1-d"});
  samples.push_back(
      {"aten::embedding", {t({7, 5}), indices({4, 3}, 7)}, "2-d"});
  samples.push_back({"aten::embedding", {t({7, 5}), indices({}, 7)}, "0-dim"});
  samples.push_back(
      {"aten::embedding", {t({7, 5}), indices({4, 3}, 7), 2}, "padding"});
  samples.push_back(
      {"aten::embedding", {t({3, 4}), indices({0, 3}, 3)}, "no indices"});
  samples.push_back(
      {"aten::embedding_dense_backward",
       {t({4, 3, 5}), indices({4, 3}, 7), 7, 2, false},
       "",
       true});
  samples.push_back(
      {"aten::embedding_dense_backward",
       {t({4, 3, 5}), indices({4, 3}, 7), 7, -1, true},
       "by frequency",
       true});
  samples.push_back({"tessera::lookup", {t({7, 6}), indices({5}, 7)}, "1-d"});
  samples.push_back(
      {"tessera::lookup", {t({7, 5}), indices({4, 3}, 7), 2}, "padding"});
  samples.push_back(
      {"tessera::lookup", {floats({3, 4}), indices({6}, 3), -1, true}, "freq"});
  for (const int padding : {-1, 2}) {
    samples.push_back(
        {"tessera::lookup_backward",
         {t({4, 3, 5}), indices({4, 3}, 7), t({7, 5}), padding},
         padding < 0 ? "" : "padding"});
  }
  samples.push_back(
      {"tessera::lookup_backward",
       {t({4, 3, 5}), indices({4, 3}, 7), t({7, 5}), -1, true},
       "by frequency",
       true});
  samples.push_back({"aten::glu", {t({5, 6}), 1}});
  samples.push_back({"aten::prelu", {t({5, 3}), t({3})}});
  samples.push_back({"aten::prelu", {t({5, 3}), t({1})}, "one weight"});
  samples.push_back({"aten::cosine_similarity", {t({5, 3}), t({5, 3}), 1}});
  add_losses(samples);
}

}  // namespace tessera::testing
