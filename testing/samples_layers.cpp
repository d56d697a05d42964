// Layers of networks: attention, images, pools, batch norms.
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
  samples.push_back({op, {k, q, q, none(), 0.0, true}, "causal, more keys"});
  samples.push_back({op, {q, q, q, none(), 0.0, true, 0.3}, "causal, scaled"});
  samples.push_back({op, {q, k, k, t({4, 1, 5, 3})}, "masks"});
  const auto grouped = t({4, 2, 3, 2});
  samples.push_back(
      {op,
       {q, grouped, grouped, none(), 0.0, false, none(), true},
       "grouped queries"});
  samples.push_back(
      {op,
       {q, grouped, grouped, none(), 0.0, true, none(), true},
       "causal, grouped queries"});
  const char* causal = "tessera::causal_attention";
  samples.push_back({causal, {q, q, q}, "", true});
  samples.push_back({causal, {q, k, k}, "fewer keys", true});
  samples.push_back({causal, {k, q, q, 0.3}, "more keys, scaled", true});
  samples.push_back({causal, {q, grouped, grouped}, "grouped queries", true});
  samples.push_back(
      {"tessera::causal_attention_backward",
       {q, q, k, k, q, t({4, 6, 5}).positive()},
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
  samples.push_back(
      {"aten::group_norm", {t({3, 8, 2, 2}), 4, t({8}), t({8})}, "images"});
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
  samples.push_back(
      {"aten::native_group_norm_backward",
       {t({3, 8, 4}),
        t({3, 8, 4}),
        t({3, 4}),
        t({3, 4}).positive(),
        t({8}),
        3,
        8,
        4,
        4,
        c10::IValue(c10::List<bool>({true, true, true}))},
       "four groups",
       true});
  samples.push_back(
      {"aten::native_group_norm",
       {t({3, 8, 4}), none(), none(), 3, 8, 4, 4, 1e-5},
       "no weight"});
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

// Names of ops of the same kind for 1, 2 and 3 dimensions.
std::string for_dims(const std::string& kind, int64_t dims) {
  return "aten::" + kind + std::to_string(dims) + "d";
}

void add_padding_gradients(Samples& samples) {
  for (const char* kind : {"reflection_pad", "replication_pad"}) {
    for (int64_t n = 1; n <= 3; ++n) {
      Sizes padded{4, 3};
      padded.resize(2 + n, 7);
      Sizes sizes{4, 3};
      sizes.resize(2 + n, 4);
      std::vector<int64_t> padding;
      for (int64_t d = 0; d < n; ++d) {
        padding.insert(padding.end(), {1, 2});
      }
      samples.push_back(
          {for_dims(kind, n) + "_backward",
           {t(padded), t(sizes), dims(padding)},
           "",
           true});
    }
  }
  samples.push_back(
      {"aten::reflection_pad2d", {t({4, 3, 3, 3}), dims({1, 2, 0, 1})}});
}

void add_pools(Samples& samples) {
  const auto volume = t({4, 3, 4, 4, 4});
  samples.push_back(
      {"aten::max_pool3d_with_indices", {volume, dims({2, 2, 2})}});
  samples.push_back(
      {"aten::max_pool3d_with_indices",
       {t({4, 5, 5, 4}),
        dims({2}),
        dims({2, 2, 1}),
        dims({1}),
        dims({1}),
        true},
       "rounded up"});
  samples.push_back(
      {"aten::max_pool3d_with_indices_backward",
       {t({4, 3, 2, 2, 2}),
        volume,
        dims({2, 2, 2}),
        dims({2, 2, 2}),
        dims({0}),
        dims({1}),
        false,
        indices({4, 3, 2, 2, 2}, 64)},
       "",
       true});
  samples.push_back(
      {"aten::max_unpool2d",
       {t({4, 3, 2, 2}),
        indices({4, 3, 2, 2}, 16).with(Values::Permutation),
        dims({12, 12})},
       "",
       true});
  samples.push_back(
      {"aten::max_unpool3d",
       {t({4, 3, 2, 2, 2}),
        indices({4, 3, 2, 2, 2}, 64).with(Values::Permutation),
        dims({6, 6, 6}),
        dims({2, 2, 2}),
        dims({0, 0, 0})},
       "",
       true});
  const auto picks = [](Sizes sizes) {
    return t(std::move(sizes)).with(Values::Probability);
  };
  samples.push_back(
      {"aten::fractional_max_pool2d",
       {t({4, 3, 6, 6}), dims({2, 2}), dims({3, 3}), picks({4, 3, 2})},
       "",
       true});
  samples.push_back(
      {"aten::fractional_max_pool2d_backward",
       {t({4, 3, 3, 3}),
        t({4, 3, 6, 6}),
        dims({2, 2}),
        dims({3, 3}),
        indices({4, 3, 3, 3}, 36)},
       "",
       true});
  samples.push_back(
      {"aten::fractional_max_pool3d",
       {volume, dims({2, 2, 2}), dims({2, 2, 2}), picks({4, 3, 3})},
       "",
       true});
  samples.push_back(
      {"aten::fractional_max_pool3d_backward",
       {t({4, 3, 2, 2, 2}),
        volume,
        dims({2, 2, 2}),
        dims({2, 2, 2}),
        indices({4, 3, 2, 2, 2}, 64)},
       "",
       true});
  const auto one = dims({1, 1});
  samples.push_back(
      {"aten::im2col",
       {t({4, 6, 5, 5}), dims({2, 3}), one, one, dims({2, 1})}});
  samples.push_back(
      {"aten::im2col",
       {t({4, 5, 5}), dims({2, 2}), one, dims({0, 0}), one},
       "one sample"});
  samples.push_back(
      {"aten::col2im",
       {t({4, 24, 9}), dims({4, 4}), dims({2, 2}), one, dims({0, 0}), one}});
}

void add_sampling(Samples& samples) {
  // What was written into zeros that ATen makes.
  samples.push_back({"aten::_pad_circular", {t({4, 3, 5}), dims({2, 1})}});
  const auto grid = t({4, 5, 3, 2}).unit();
  const auto volume_grid = t({4, 3, 2, 3, 3}).unit();
  const auto both = c10::IValue(c10::List<bool>({true, true}));
  samples.push_back(
      {"aten::grid_sampler_2d", {t({4, 6, 4, 4}), grid, 0, 0, false}});
  samples.push_back(
      {"aten::grid_sampler_3d", {t({4, 6, 3, 3, 3}), volume_grid, 0, 1, true}});
  samples.push_back(
      {"aten::grid_sampler_2d_backward",
       {t({4, 6, 5, 3}), t({4, 6, 4, 4}), grid, 0, 0, false, both},
       "",
       true});
  samples.push_back(
      {"aten::grid_sampler_3d_backward",
       {t({4, 6, 3, 2, 3}), t({4, 6, 3, 3, 3}), volume_grid, 0, 0, false, both},
       "",
       true});
  samples.push_back(
      {"aten::affine_grid_generator",
       {t({4, 2, 3}), dims({4, 3, 5, 2}), false}});
  samples.push_back(
      {"aten::affine_grid_generator",
       {t({4, 3, 4}), dims({4, 3, 2, 5, 2}), true},
       "3-d"});
  samples.push_back({"aten::pixel_shuffle", {t({3, 16, 4, 4}), 2}});
  samples.push_back({"aten::pixel_unshuffle", {t({3, 4, 8, 8}), 2}});
  samples.push_back({"aten::channel_shuffle", {t({5, 6, 4}), 3}});
  samples.push_back({"aten::rot90", {t({5, 3, 4}), 1, dims({1, 2})}});
  samples.push_back({"aten::rot90", {t({5, 3, 4}), 2, dims({0, 1})}, "twice"});
}

void add_batch_norms(Samples& samples) {
  const auto x = t({5, 6, 4});
  const auto c = t({6});
  samples.push_back(
      {"aten::native_batch_norm",
       {x, c, c, c, c.positive(), false, 0.1, 1e-5},
       "given statistics"});
  samples.push_back(
      {"aten::_native_batch_norm_legit.no_stats", {x, c, c, true, 0.1, 1e-5}});
  samples.push_back(
      {"aten::_native_batch_norm_legit.no_stats",
       {t({8, 3}), none(), none(), true, 0.1, 1e-5},
       "no weight"});
  samples.push_back(
      {"aten::instance_norm",
       {t({4, 3, 5}), t({3}), t({3}), none(), none(), true, 0.1, 1e-5, false}});
}

}  // namespace

void add_layer_samples(Samples& samples) {
  add_attention(samples);
  add_convolution_samples(samples);
  add_images(samples);
  add_padding_gradients(samples);
  add_pools(samples);
  add_sampling(samples);
  add_batch_norms(samples);
}

}  // namespace tessera::testing
