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

void add_attention(Samples& samples) {
  const std::string flash = "aten::_scaled_dot_product_flash_attention_for_cpu";
  const auto q = t({4, 6, 5, 2});
  const auto k = t({4, 6, 3, 2});
  samples.push_back({flash, {q, k, k, 0.0, false}});
  samples.push_back({flash, {q, q, q, 0.0, true}, "causal"});
  samples.push_back({flash, {q, k, k, 0.0, false, t({5, 3})}, "mask"});
  samples.push_back({flash, {q, k, k, 0.0, false, t({4, 1, 5, 3})}, "masks"});
  samples.push_back(
      {flash + "_backward",
       {q, q, k, k, q, t({4, 6, 5}).positive(), 0.0, false},
       "",
       true});
  const char* op = "aten::scaled_dot_product_attention";
  samples.push_back({op, {q, k, k, none(), 0.0, false}});
  samples.push_back({op, {q, k, k, none(), 0.0, true}, "causal"});
  samples.push_back({op, {q, k, k, t({4, 1, 5, 3})}, "masks"});
  const auto grouped = t({4, 2, 3, 2});
  samples.push_back(
      {op,
       {q, grouped, grouped, none(), 0.0, false, none(), true},
       "grouped queries"});
}

void add_convolutions(Samples& samples) {
  const char* op = "aten::convolution";
  const auto one = dims({1});
  const auto zero = dims({0});
  samples.push_back(
      {op,
       {t({5, 4, 6}), t({3, 4, 3}), t({3}), one, one, one, false, zero, 1},
       "1-d"});
  samples.push_back(
      {op,
       {t({4, 4, 5, 5}),
        t({6, 4, 3, 3}),
        t({6}),
        dims({2, 1}),
        dims({1, 0}),
        dims({1, 2}),
        false,
        dims({0, 0}),
        1},
       "2-d"});
  samples.push_back(
      {op,
       {t({4, 4, 3, 3}),
        t({4, 6, 2, 2}),
        t({6}),
        dims({2, 2}),
        dims({0, 0}),
        dims({1, 1}),
        true,
        dims({1, 1}),
        1},
       "transposed"});
  samples.push_back(
      {op,
       {t({3, 4, 5}), t({8, 1, 3}), t({8}), one, zero, one, false, zero, 4},
       "depthwise"});
  samples.push_back(
      {op,
       {t({3, 4, 5}), t({6, 2, 3}), t({6}), one, zero, one, false, zero, 2},
       "groups"});
  samples.push_back(
      {"aten::convolution_backward",
       {t({5, 3, 6}),
        t({5, 4, 6}),
        t({3, 4, 3}),
        dims({3}),
        one,
        one,
        one,
        false,
        zero,
        1,
        c10::IValue(c10::List<bool>({true, true, true}))},
       "",
       true});
}

void add_images(Samples& samples) {
  const auto x = t({4, 3, 6, 6});
  const auto volume = t({2, 3, 4, 4, 4});
  const auto add = [&](const char* op, std::vector<SampleArg> args) {
    samples.push_back({op, std::move(args)});
  };
  samples.push_back({"aten::group_norm", {t({5, 6, 4}), 3, t({6}), t({6})}});
  add("aten::native_group_norm",
      {t({5, 6, 4}), t({6}), t({6}), 5, 6, 4, 3, 1e-5});
  add("aten::max_pool2d_with_indices", {x, dims({2, 2})});
  samples.push_back(
      {"aten::max_pool2d_with_indices",
       {t({4, 6, 6}), dims({3, 3}), dims({2, 2}), dims({1, 1})},
       "one sample"});
  add("aten::max_pool1d", {t({4, 3, 6}), dims({2})});
  add("aten::avg_pool2d", {x, dims({3, 3}), dims({2, 2}), dims({1, 1})});
  add("aten::avg_pool3d", {volume, dims({2, 2, 2})});
  add("aten::_adaptive_avg_pool2d", {t({4, 3, 5, 5}), dims({2, 3})});
  add("aten::adaptive_max_pool2d", {t({4, 3, 5, 5}), dims({2, 3})});
  add("aten::upsample_bilinear2d", {t({4, 3, 3, 3}), dims({5, 6}), true});
  add("aten::upsample_nearest2d", {t({4, 3, 3, 3}), dims({6, 6})});
  add("aten::upsample_nearest1d", {t({4, 3, 4}), dims({7})});
  add("aten::upsample_nearest3d", {volume, dims({6, 6, 6})});
  const auto add_backward = [&](const char* op, std::vector<SampleArg> args) {
    samples.push_back({op, std::move(args), "", true});
  };
  add_backward(
      "aten::native_group_norm_backward",
      {t({5, 6, 4}),
       t({5, 6, 4}),
       t({5, 3}),
       t({5, 3}).positive(),
       t({6}),
       5,
       6,
       4,
       3,
       c10::IValue(c10::List<bool>({true, true, true}))});
  add_backward(
      "aten::avg_pool2d_backward",
      {t({4, 3, 3, 3}),
       x,
       dims({2, 2}),
       dims({2, 2}),
       dims({0, 0}),
       false,
       true,
       none()});
  add_backward(
      "aten::avg_pool3d_backward",
      {t({2, 3, 2, 2, 2}),
       volume,
       dims({2, 2, 2}),
       dims({2, 2, 2}),
       dims({0, 0, 0}),
       false,
       true,
       none()});
  add_backward(
      "aten::_adaptive_avg_pool2d_backward",
      {t({4, 3, 2, 3}), t({4, 3, 5, 5})});
  add("aten::_adaptive_avg_pool3d", {volume, dims({2, 3, 2})});
  add_backward(
      "aten::_adaptive_avg_pool3d_backward", {t({2, 3, 2, 3, 2}), volume});
  add("aten::adaptive_max_pool3d", {volume, dims({2, 3, 2})});
  for (const char* op :
       {"aten::upsample_linear1d", "aten::_upsample_nearest_exact1d"}) {
    const bool linear = std::string(op).find("linear") != std::string::npos;
    std::vector<SampleArg> args{t({4, 3, 4}), dims({7})};
    if (linear) {
      args.emplace_back(false);
    }
    add(op, std::move(args));
  }
  for (const char* op :
       {"aten::upsample_bicubic2d",
        "aten::_upsample_bilinear2d_aa",
        "aten::_upsample_bicubic2d_aa"}) {
    add(op, {t({4, 3, 3, 3}), dims({5, 6}), false});
  }
  add("aten::_upsample_nearest_exact2d", {t({4, 3, 3, 3}), dims({5, 6})});
  add("aten::upsample_trilinear3d", {volume, dims({6, 6, 6}), true});
  add("aten::_upsample_nearest_exact3d", {volume, dims({6, 6, 6})});
  add("aten::replication_pad1d", {t({4, 3, 5}), dims({2, 1})});
  add("aten::replication_pad3d", {volume, dims({1, 0, 1, 1, 0, 2})});
  add("aten::reflection_pad3d", {volume, dims({1, 0, 1, 1, 0, 2})});
  for (const char* kind : {"linear1d", "nearest1d", "_exact1d"}) {
    const std::string name =
        kind[0] == '_' ? "aten::_upsample_nearest_exact1d_backward"
                       : std::string("aten::upsample_") + kind + "_backward";
    std::vector<SampleArg> args{t({4, 3, 7}), dims({7}), dims({4, 3, 4})};
    if (kind[0] == 'l') {
      args.emplace_back(false);
    }
    samples.push_back({name, std::move(args), "", true});
  }
  for (const char* kind : {"bilinear2d", "bicubic2d", "nearest2d"}) {
    std::vector<SampleArg> args{
        t({4, 3, 5, 6}), dims({5, 6}), dims({4, 3, 3, 3})};
    if (kind[0] == 'b') {
      args.emplace_back(false);
    }
    samples.push_back(
        {std::string("aten::upsample_") + kind + "_backward",
         std::move(args),
         "",
         true});
  }
  for (const char* kind : {"bilinear2d_aa", "bicubic2d_aa"}) {
    samples.push_back(
        {std::string("aten::_upsample_") + kind + "_backward",
         {t({4, 3, 5, 6}), dims({5, 6}), dims({4, 3, 3, 3}), false},
         "",
         true});
  }
  add_backward(
      "aten::_upsample_nearest_exact2d_backward",
      {t({4, 3, 5, 6}), dims({5, 6}), dims({4, 3, 3, 3})});
  for (const char* kind :
       {"upsample_trilinear3d",
        "upsample_nearest3d",
        "_upsample_nearest_exact3d"}) {
    std::vector<SampleArg> args{
        t({2, 3, 6, 6, 6}), dims({6, 6, 6}), dims({2, 3, 4, 4, 4})};
    if (std::string(kind) == "upsample_trilinear3d") {
      args.emplace_back(true);
    }
    samples.push_back(
        {std::string("aten::") + kind + "_backward",
         std::move(args),
         "",
         true});
  }
  add("aten::replication_pad2d", {t({4, 3, 3, 3}), dims({1, 2, 0, 1})});
  add("aten::reflection_pad1d", {t({4, 3, 5}), dims({2, 1})});
}

void add_batched(Samples& samples) {
  const auto matrices = t({4, 3, 3});
  for (const char* op :
       {"aten::linalg_inv_ex",
        "aten::linalg_lu",
        "aten::linalg_lu_factor_ex",
        "aten::linalg_qr",
        "aten::_linalg_det",
        "aten::_linalg_slogdet"}) {
    samples.push_back({op, {matrices}});
  }
  samples.push_back({"aten::linalg_matrix_exp", {matrices.unit()}});
  for (const char* op : {"aten::_linalg_svd", "aten::_linalg_eigh"}) {
    samples.push_back({op, {matrices}, "", true});
  }
  samples.push_back(
      {"aten::_fft_r2c", {t({4, 6, 5}), dims({2}), 0, true}, "", true});
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
  add_attention(samples);
  add_convolutions(samples);
  add_images(samples);
  add_batched(samples);
}

}  // namespace tessera::testing
