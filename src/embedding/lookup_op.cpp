#include "embedding/lookup_op.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>

#include "embedding/embedding.h"

namespace tessera::detail {

namespace {

void check_lookup_table(const at::Tensor& weight) {
  TORCH_CHECK(
      weight.dim() == 2,
      "[embedding] expected a table of two dimensions, but got one of shape ",
      weight.sizes());
}

c10::DimVector looked_up_sizes(
    const at::Tensor& weight, const at::Tensor& indices) {
  check_lookup_table(weight);
  c10::DimVector sizes(indices.sizes());
  sizes.push_back(weight.size(1));
  return sizes;
}

void check_grad(const LookupBackward::Args& args) {
  const auto wanted = looked_up_sizes(args.weight, args.indices);
  TORCH_CHECK_VALUE(
      args.grad.sizes() == at::IntArrayRef(wanted),
      "[tessera.lookup_backward] expected a gradient of shape ",
      at::IntArrayRef(wanted),
      ", but got one of shape ",
      args.grad.sizes());
}

}  // namespace

at::Tensor Lookup::on_data(const Args& args) {
  check_lookup_table(args.weight);
  return lookup_rows(
      args.weight,
      args.indices,
      args.rows.first,
      args.rows.size.value_or(args.weight.size(0)));
}

at::Tensor Lookup::on_meta(const Args& args) {
  return at::empty(
      looked_up_sizes(args.weight, args.indices), args.weight.options());
}

OpInputs Lookup::inputs(const Args& args) { return {args.weight}; }

void Lookup::save(SavedContext* ctx, const Args& args, const at::Tensor&) {
  // The table is kept for its layout, not as a variable: a write into it before
  // the backward pass changes nothing.
  ctx->save_for_backward({args.indices});
  keep(ctx, Args{args.weight.detach(), {}, args.options, args.rows});
}

Gradients Lookup::backward(SavedContext* ctx, const Gradients& grads) {
  const auto& args = kept<Args>(ctx);
  return {call_op<LookupBackward>(
      {grads[0],
       ctx->get_saved_variables()[0],
       args.weight,
       args.options,
       args.rows})};
}

at::Tensor LookupBackward::on_data(const Args& args) {
  check_grad(args);
  const int64_t rows = args.weight.size(0);
  return rows_gradient(
      args.grad,
      {args.indices, args.rows.first, rows, args.rows.size.value_or(rows)},
      args.options);
}

at::Tensor LookupBackward::on_meta(const Args& args) {
  check_grad(args);
  return at::empty(args.weight.sizes(), args.grad.options());
}

OpInputs LookupBackward::inputs(const Args& args) { return {args.grad}; }

void LookupBackward::save(
    SavedContext* ctx, const Args& args, const at::Tensor&) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !args.options.sparse && !args.options.scale_grad_by_freq,
      "[embedding] a gradient that is sparse or scaled by frequency cannot "
      "be differentiated again");
  ctx->save_for_backward({args.indices});
  keep(ctx, Args{{}, {}, {}, args.options, args.rows});
}

Gradients LookupBackward::backward(SavedContext* ctx, const Gradients& grads) {
  const auto indices = ctx->get_saved_variables()[0];
  const auto& args = kept<Args>(ctx);
  auto grad = call_op<Lookup>({grads[0], indices, args.options, args.rows});
  // The padding row took nothing from the gradient.
  if (args.options.padding_idx >= 0) {
    grad = grad.masked_fill(
        at::eq(indices, args.options.padding_idx).unsqueeze(-1), 0);
  }
  return {grad};
}

at::Tensor rows_gradient(
    const at::Tensor& grad, const HeldRows& held, const LookupArgs& options) {
  const auto& [padding_idx, scale_grad_by_freq, sparse] = options;
  if (!sparse) {
    return lookup_rows_backward(grad, held, padding_idx, scale_grad_by_freq);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      !scale_grad_by_freq,
      "[embedding] scale_grad_by_freq is not supported for sparse "
      "gradients: leave one of them off");
  return lookup_rows_sparse_backward(grad, held, padding_idx);
}

void register_lookup_op(OpRegistry& ops) {
  define_op<Lookup>(ops);
  define_op<LookupBackward>(ops);
}

}  // namespace tessera::detail
