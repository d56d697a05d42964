// The memory-efficient attention of GPUs. Its backward pass reads the output as
// [batch, rows, heads, columns] in memory, whatever its strides say, and the
// logsumexp has more rows than the query. As ops of our own, the layout in
// memory is stated, and kept where shards are redistributed in between.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/empty.h>

#include <array>
#include <optional>
#include <tuple>

#include "dispatch/own_op.h"
#include "ops/all_ops.h"

namespace tessera::detail {

namespace {

// As the kernel lays out [batch, heads, rows, columns].
at::Tensor empty_by_rows(at::IntArrayRef sizes, const at::Tensor& like) {
  TORCH_CHECK(
      sizes.size() == 4,
      "[efficient_attention] expected tensors of four dimensions, but got one "
      "of shape ",
      sizes);
  return at::empty({sizes[0], sizes[2], sizes[1], sizes[3]}, like.options())
      .transpose(1, 2);
}

at::Tensor laid_by_rows(const at::Tensor& tensor) {
  return tensor.transpose(1, 2).contiguous().transpose(1, 2);
}

struct AttentionInputs {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  std::optional<at::Tensor> mask;
};

struct EfficientAttention {
  static constexpr const char* kSchema =
      "efficient_attention(Tensor query, Tensor key, Tensor value, "
      "Tensor? attn_bias, bool compute_log_sumexp, float dropout_p=0., "
      "bool is_causal=False, *, float? scale=None) -> "
      "(Tensor, Tensor, Tensor, Tensor)";
  using Result = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
  struct Args {
    AttentionInputs in;
    bool logsumexp = false;
    double dropout = 0;
    bool causal = false;
    std::optional<double> scale;
  };

  static Result on_data(const Args& args) {
    return at::_scaled_dot_product_efficient_attention(
        args.in.query,
        args.in.key,
        args.in.value,
        args.in.mask,
        args.logsumexp,
        args.dropout,
        args.causal,
        args.scale);
  }

  static Result on_meta(const Args& args) {
    const auto& query = args.in.query;
    const int64_t rows = args.logsumexp ? (query.size(2) + 31) / 32 * 32 : 0;
    const auto seed = args.in.query.options().dtype(at::kLong);
    return {
        empty_by_rows(
            {query.size(0),
             query.size(1),
             query.size(2),
             args.in.value.size(3)},
            query),
        at::empty(
            {query.size(0), query.size(1), rows},
            args.in.query.options().dtype(at::kFloat)),
        at::empty({}, seed),
        at::empty({}, seed)};
  }
};

struct EfficientAttentionBackward {
  static constexpr const char* kSchema =
      "efficient_attention_backward(Tensor grad_out, Tensor query, Tensor key, "
      "Tensor value, Tensor? attn_bias, Tensor out, Tensor logsumexp, "
      "Tensor philox_seed, Tensor philox_offset, float dropout_p, "
      "bool[4] grad_input_mask, bool is_causal=False, *, float? scale=None) -> "
      "(Tensor, Tensor, Tensor, Tensor)";
  using Result = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
  struct Args {
    at::Tensor grad;
    AttentionInputs in;
    at::Tensor out;
    at::Tensor logsumexp;
    at::Tensor seed;
    at::Tensor offset;
    double dropout = 0;
    std::array<bool, 4> wanted = {};
    bool causal = false;
    std::optional<double> scale;
  };

  static Result on_data(const Args& args) {
    return at::_scaled_dot_product_efficient_attention_backward(
        args.grad,
        args.in.query,
        args.in.key,
        args.in.value,
        args.in.mask.value_or(at::Tensor()),
        laid_by_rows(args.out),
        args.logsumexp,
        args.seed,
        args.offset,
        args.dropout,
        args.wanted,
        args.causal,
        args.scale);
  }

  static Result on_meta(const Args& args) {
    const bool of_mask = args.wanted[3] && args.in.mask.has_value();
    return {
        empty_by_rows(args.in.query.sizes(), args.in.query),
        empty_by_rows(args.in.key.sizes(), args.in.key),
        empty_by_rows(args.in.value.sizes(), args.in.value),
        of_mask ? at::empty(args.in.mask->sizes(), args.in.mask->options())
                : at::Tensor()};
  }
};

EfficientAttentionBackward::Result attend_backward(
    const at::Tensor& grad,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& mask,
    const at::Tensor& out,
    const at::Tensor& logsumexp,
    const at::Tensor& seed,
    const at::Tensor& offset,
    double dropout,
    std::array<bool, 4> wanted,
    bool causal,
    std::optional<double> scale) {
  return call_op<EfficientAttentionBackward>(
      {grad,
       {query, key, value, mask.defined() ? std::optional(mask) : std::nullopt},
       out,
       logsumexp,
       seed,
       offset,
       dropout,
       wanted,
       causal,
       scale});
}

}  // namespace

void register_attention(OpRegistry& ops) {
  define_op<EfficientAttention>(ops);
  define_op<EfficientAttentionBackward>(ops);
  ops.composed(
      "_scaled_dot_product_efficient_attention",
      kUnpacked<EfficientAttention, &call_op<EfficientAttention>>);
  ops.composed(
      "_scaled_dot_product_efficient_attention_backward", &attend_backward);
}

}  // namespace tessera::detail
