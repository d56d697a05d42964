// Causal attention on the CPU, where a rank may hold any rows of the query. It
// is an op of our own: the kernel takes its first row for the first of all.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "dispatch/own_op.h"
#include "dispatch/run_by_rule.h"
#include "ops/all_ops.h"

namespace tessera::detail {

namespace {

// Keys that the rows see.
struct KeyBlock {
  int64_t first;
  int64_t count;
  bool causal;  // row r sees the first r + 1 of them; otherwise all

  at::Tensor of(const at::Tensor& keys) const {
    return keys.narrow(2, first, count);
  }
};

// The keys before the first row, which all rows see, and those on the diagonal.
// Keys after the last row are seen by none.
c10::SmallVector<KeyBlock, 2> blocks_of(
    int64_t first_row, int64_t rows, int64_t keys) {
  c10::SmallVector<KeyBlock, 2> blocks;
  if (first_row > 0) {
    blocks.push_back({0, std::min(first_row, keys), false});
  }
  if (first_row < keys) {
    blocks.push_back(
        {first_row, std::min(first_row + rows, keys) - first_row, true});
  }
  return blocks;
}

// The kernel does not look, and reads what is not there.
void check_shapes(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  TORCH_CHECK_VALUE(
      query.dim() == 4 && key.dim() == 4 && value.dim() == 4 &&
          query.size(0) == key.size(0) && key.size(1) > 0 &&
          query.size(1) % key.size(1) == 0 && key.size(2) > 0 &&
          query.size(3) == key.size(3) && key.sizes() == value.sizes(),
      "[tessera.causal_attention] expected a query [n, h, l, e], keys and "
      "values [n, g, s, e] with h a multiple of g, but got ",
      query.sizes(),
      ", ",
      key.sizes(),
      " and ",
      value.sizes());
}

using Attended = std::tuple<at::Tensor, at::Tensor>;

// What a row gives for all keys, of what it gives for two parts of them.
Attended merged(const Attended& a, const Attended& b) {
  const auto& [out_a, sum_a] = a;
  const auto& [out_b, sum_b] = b;
  const auto sum = at::logaddexp(sum_a, sum_b);
  const auto share = [&](const at::Tensor& part) {
    return part.sub(sum).exp_().unsqueeze(3);
  };
  const auto out = out_a.mul(share(sum_a)).add_(out_b.mul(share(sum_b)));
  return {out.to(out_a.scalar_type()), sum};
}

struct CausalAttention {
  static constexpr const char* kSchema =
      "causal_attention(Tensor query, Tensor key, Tensor value, *, "
      "float? scale=None, int first_row=0) -> (Tensor, Tensor)";
  using Result = Attended;
  struct Args {
    at::Tensor query;
    at::Tensor key;
    at::Tensor value;
    std::optional<double> scale;
    int64_t first_row = 0;
  };

  static Result on_data(const Args& args) {
    check_shapes(args.query, args.key, args.value);
    if (args.query.numel() == 0) {
      return on_meta(args);  // nothing to fill
    }
    const int64_t rows = args.query.size(2);
    std::optional<Result> result;
    for (const auto& block :
         blocks_of(args.first_row, rows, args.key.size(2))) {
      auto part = at::_scaled_dot_product_flash_attention_for_cpu(
          args.query,
          block.of(args.key),
          block.of(args.value),
          /*dropout_p=*/0,
          block.causal,
          /*attn_mask=*/std::nullopt,
          args.scale);
      result = result.has_value() ? merged(*result, part) : std::move(part);
    }
    return *std::move(result);
  }

  static Result on_meta(const Args& args) {
    check_shapes(args.query, args.key, args.value);
    const auto query = args.query.sizes();
    const auto dtype = args.query.scalar_type();
    const auto sums = at::isReducedFloatingType(dtype) ? at::kFloat : dtype;
    return {
        at::empty(
            {query[0], query[1], query[2], args.value.size(3)},
            args.query.options()),
        at::empty(
            {query[0], query[1], query[2]}, args.query.options().dtype(sums))};
  }
};

struct CausalAttentionBackward {
  static constexpr const char* kSchema =
      "causal_attention_backward(Tensor grad_out, Tensor query, Tensor key, "
      "Tensor value, Tensor out, Tensor logsumexp, *, float? scale=None, "
      "int first_row=0) -> (Tensor, Tensor, Tensor)";
  using Result = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
  struct Args {
    at::Tensor grad;
    at::Tensor query;
    at::Tensor key;
    at::Tensor value;
    at::Tensor out;
    at::Tensor logsumexp;
    std::optional<double> scale;
    int64_t first_row = 0;
  };

  // With the sums of all keys, the gradients of each part of them are right by
  // themselves.
  static Result on_data(const Args& args) {
    check_shapes(args.query, args.key, args.value);
    TORCH_CHECK_VALUE(
        args.grad.sizes() == args.query.sizes() &&
            args.out.sizes() == args.query.sizes() &&
            args.logsumexp.sizes() == args.query.sizes().slice(0, 3),
        "[tessera.causal_attention_backward] expected grad_out and out of the "
        "query's shape ",
        args.query.sizes(),
        " and a logsumexp a row, but got ",
        args.grad.sizes(),
        ", ",
        args.out.sizes(),
        " and ",
        args.logsumexp.sizes());
    const auto grad_query = at::zeros_like(args.query);
    const auto grad_key = at::zeros_like(args.key);
    const auto grad_value = at::zeros_like(args.value);
    const int64_t rows = args.query.size(2);
    if (args.query.numel() == 0) {
      return {grad_query, grad_key, grad_value};
    }
    for (const auto& block :
         blocks_of(args.first_row, rows, args.key.size(2))) {
      const auto [query, key, value] =
          at::_scaled_dot_product_flash_attention_for_cpu_backward(
              args.grad,
              args.query,
              block.of(args.key),
              block.of(args.value),
              args.out,
              args.logsumexp,
              /*dropout_p=*/0,
              block.causal,
              /*attn_mask=*/std::nullopt,
              args.scale);
      grad_query.add_(query);
      block.of(grad_key).copy_(key);
      block.of(grad_value).copy_(value);
    }
    return {grad_query, grad_key, grad_value};
  }

  static Result on_meta(const Args& args) {
    return {
        at::empty_like(args.query),
        at::empty_like(args.key),
        at::empty_like(args.value)};
  }
};

bool is_causal_only(
    bool causal, double dropout, const std::optional<at::Tensor>& mask) {
  return causal && dropout == 0 && !(mask.has_value() && mask->defined());
}

Attended attend_on_cpu(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    double dropout,
    bool causal,
    const std::optional<at::Tensor>& mask,
    std::optional<double> scale) {
  if (is_causal_only(causal, dropout, mask)) {
    return call_op<CausalAttention>({query, key, value, scale});
  }
  static const OpInfo& op =
      aten_op("_scaled_dot_product_flash_attention_for_cpu");
  const auto results =
      run_by_rule(op, query, key, value, dropout, causal, mask, scale);
  return tensors_of<CausalAttention::Result>(results);
}

CausalAttentionBackward::Result attend_on_cpu_backward(
    const at::Tensor& grad,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& out,
    const at::Tensor& logsumexp,
    double dropout,
    bool causal,
    const std::optional<at::Tensor>& mask,
    std::optional<double> scale) {
  if (is_causal_only(causal, dropout, mask)) {
    return call_op<CausalAttentionBackward>(
        {grad, query, key, value, out, logsumexp, scale});
  }
  static const OpInfo& op =
      aten_op("_scaled_dot_product_flash_attention_for_cpu_backward");
  const auto results = run_by_rule(
      op,
      grad,
      query,
      key,
      value,
      out,
      logsumexp,
      dropout,
      causal,
      mask,
      scale);
  return tensors_of<CausalAttentionBackward::Result>(results);
}

}  // namespace

void register_causal_attention(OpRegistry& ops) {
  define_op<CausalAttention>(ops);
  define_op<CausalAttentionBackward>(ops);
  ops.composed("_scaled_dot_product_flash_attention_for_cpu", &attend_on_cpu);
  ops.composed(
      "_scaled_dot_product_flash_attention_for_cpu_backward",
      &attend_on_cpu_backward);
}

}  // namespace tessera::detail
