// Ops that ATen makes of others, above our kernels: what they do to their
// intermediate results, in place too, must work in every layout.
#include "testing/samples.h"

namespace tessera::testing {

namespace {

void add_composite_norms(Samples& samples) {
  samples.push_back({"aten::rms_norm", {t({4, 6}), dims({6}), t({6})}});
  samples.push_back(
      {"aten::rms_norm", {t({4, 3, 5}), dims({3, 5})}, "two dimensions"});
  samples.push_back(
      {"aten::rms_norm", {t({4, 6}), dims({6}), none(), 0.1}, "eps"});
  samples.push_back(
      {"aten::rms_norm", {t({4, 6}).as(at::kBFloat16), dims({6})}, "bfloat16"});
  samples.push_back({"aten::cosine_similarity", {t({4, 6}), t({4, 6})}});
  samples.push_back({"aten::pairwise_distance", {t({4, 6}), t({4, 6})}});
  samples.push_back({"aten::linalg_norm", {t({4, 6})}});
  samples.push_back({"aten::linalg_vecdot", {t({4, 6}), t({4, 6})}});
  samples.push_back({"aten::norm_except_dim", {t({4, 6})}});
  samples.push_back({"aten::std", {t({4, 6})}});
  samples.push_back({"aten::var.dim", {t({4, 6}), dims({1})}});
  samples.push_back({"aten::std_mean.dim", {t({4, 6}), dims({0})}});
  samples.push_back({"aten::nanmean", {t({4, 6}), dims({1})}});
}

void add_composite_losses(Samples& samples) {
  samples.push_back(
      {"aten::cosine_embedding_loss",
       {t({4, 6}), t({4, 6}), t({4}), 0.2},
       "margin",
       /*forward_only=*/false});
  samples.push_back(
      {"aten::triplet_margin_loss", {t({4, 6}), t({4, 6}), t({4, 6})}});
  samples.push_back(
      {"aten::margin_ranking_loss", {t({5}), t({5}), t({5}), 0.3}});
  samples.push_back({"aten::hinge_embedding_loss", {t({5, 3}), t({5, 3})}});
  samples.push_back({"aten::l1_loss", {t({5, 3}), t({5, 3})}});
  samples.push_back({"aten::kl_div", {t({5, 3}), t({5, 3}).positive()}});
  samples.push_back(
      {"aten::poisson_nll_loss",
       {t({5, 3}), t({5, 3}).positive(), true, true, 1e-8, 1},
       "full"});
}

void add_recurrent_cells(Samples& samples) {
  const auto cell = [&](const char* op, int gates, bool lstm) {
    const auto rows = gates * 4;
    const SampleArg state =
        lstm ? tensors({t({3, 4}), t({3, 4})}) : SampleArg(t({3, 4}));
    samples.push_back(
        {op,
         {t({3, 5}), state, t({rows, 5}), t({rows, 4}), t({rows}), t({rows})}});
  };
  cell("aten::lstm_cell", 4, true);
  cell("aten::gru_cell", 3, false);
  cell("aten::rnn_tanh_cell", 1, false);
  cell("aten::rnn_relu_cell", 1, false);
}

void add_composite_products(Samples& samples) {
  samples.push_back(
      {"aten::_scaled_dot_product_attention_math",
       {t({2, 3, 4, 6}), t({2, 3, 5, 6}), t({2, 3, 5, 6})}});
  samples.push_back(
      {"aten::_scaled_dot_product_attention_math",
       {t({2, 3, 4, 6}), t({2, 3, 5, 6}), t({2, 3, 5, 6}), t({4, 5})},
       "mask"});
  samples.push_back(
      {"aten::tensordot", {t({4, 6}), t({6, 3}), dims({1}), dims({0})}});
  samples.push_back({"aten::inner", {t({4, 6}), t({3, 6})}});
  samples.push_back({"aten::cov", {t({4, 6})}});
  samples.push_back({"aten::corrcoef", {t({4, 6})}});
  samples.push_back(
      {"aten::linalg_multi_dot", {tensors({t({4, 6}), t({6, 3}), t({3, 5})})}});
  samples.push_back({"aten::trapezoid.dx", {t({4, 6}), 0.5}});
  samples.push_back({"aten::diff", {t({4, 6})}});
}

}  // namespace

void add_composite_samples(Samples& samples) {
  add_composite_norms(samples);
  add_composite_losses(samples);
  add_recurrent_cells(samples);
  add_composite_products(samples);
}

}  // namespace tessera::testing
