// Layers of networks: attention, convolutions, images; and batches of matrices.
#include "testing/samples.h"

namespace tessera::testing {

namespace {

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
      "aten::max_pool2d_with_indices_backward",
      {t({4, 3, 3, 3}),
       x,
       dims({2, 2}),
       dims({2, 2}),
       dims({0, 0}),
       dims({1, 1}),
       false,
       indices({4, 3, 3, 3}, 36)});
  add_backward(
      "aten::adaptive_max_pool2d_backward",
      {t({4, 3, 2, 3}), x, indices({4, 3, 2, 3}, 36)});
  add_backward(
      "aten::adaptive_max_pool3d_backward",
      {t({2, 3, 2, 2, 2}), volume, indices({2, 3, 2, 2, 2}, 64)});
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
  // Factors are defined up to signs, so that their gradients are not compared.
  for (const char* op :
       {"aten::_linalg_svd",
        "aten::_linalg_eigh",
        "aten::linalg_cholesky_ex"}) {
    samples.push_back({op, {matrices}, "", true});
  }
  samples.push_back({"aten::linalg_inv", {matrices}});
  samples.push_back({"aten::linalg_svdvals", {matrices}});
  samples.push_back({"aten::linalg_eigvalsh", {matrices}});
  // Formulas of these make plain tensors; torch.fft's are tried in Python.
  const auto complex = t({4, 6, 3}).as(at::kComplexDouble);
  samples.push_back(
      {"aten::_fft_r2c", {t({4, 6, 5}), dims({2}), 0, true}, "", true});
  samples.push_back(
      {"aten::_fft_c2c", {complex, dims({1}), 0, true}, "", true});
  samples.push_back({"aten::_fft_c2r", {complex, dims({2}), 0, 5}, "", true});
}

}  // namespace

void add_layer_samples(Samples& samples) {
  add_attention(samples);
  add_convolutions(samples);
  add_images(samples);
  add_batched(samples);
}

}  // namespace tessera::testing
