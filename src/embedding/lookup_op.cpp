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

// The gradient of `weight`, which is read only for its layout and size, so that
// a row-wise sharded table gets a row-wise sharded gradient. It can be
// differentiated again.
struct LookupBackward {
  static constexpr const char* kSchema =
      "lookup_backward(Tensor grad, Tensor indices, Tensor weight, "
      "int padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False, "
      "*, int first_row=0, int? table_rows=None) -> Tensor";
  using Result = at::Tensor;
  struct Args {
    at::Tensor grad;
    at::Tensor indices;
    at::Tensor weight;
    LookupArgs options;
    HeldPart rows;
  };

  static at::Tensor on_data(const Args& args) {
    check_grad(args);
    const int64_t rows = args.weight.size(0);
    return rows_gradient(
        args.grad,
        {args.indices, args.rows.first, rows, args.rows.size.value_or(rows)},
        args.options);
  }

  static at::Tensor on_meta(const Args& args) {
    check_grad(args);
    return at::empty(args.weight.sizes(), args.grad.options());
  }

  static void check_grad(const Args& args) {
    const auto wanted = looked_up_sizes(args.weight, args.indices);
    TORCH_CHECK_VALUE(
        args.grad.sizes() == at::IntArrayRef(wanted),
        "[tessera.lookup_backward] expected a gradient of shape ",
        at::IntArrayRef(wanted),
        ", but got one of shape ",
        args.grad.sizes());
  }

  static OpInputs inputs(const Args& args) { return {args.grad}; }
  static at::Tensor& linear_in(Args& args) { return args.grad; }

  static void save(SavedContext* ctx, const Args& args, const at::Tensor&) {
    ctx->save_for_backward({args.indices});
    keep(ctx, Args{{}, {}, {}, args.options, args.rows});
  }

  static Gradients backward(SavedContext* ctx, const Gradients& grads) {
    const auto indices = ctx->get_saved_variables()[0];
    const auto& args = kept<Args>(ctx);
    TORCH_CHECK_NOT_IMPLEMENTED(
        !args.options.sparse && !args.options.scale_grad_by_freq,
        "[embedding] a gradient that is sparse or scaled by frequency cannot "
        "be differentiated again");
    auto grad = call_op<Lookup>({grads[0], indices, args.options, args.rows});
    // The padding row took nothing from the gradient.
    if (args.options.padding_idx >= 0) {
      grad = grad.masked_fill(
          at::eq(indices, args.options.padding_idx).unsqueeze(-1), 0);
    }
    return {grad};
  }
};

struct LookupOp : Lookup {
  static at::Tensor on_data(const Args& args) {
    check_lookup_table(args.weight);
    return lookup_rows(
        args.weight,
        args.indices,
        args.rows.first,
        args.rows.size.value_or(args.weight.size(0)));
  }

  static at::Tensor on_meta(const Args& args) {
    return at::empty(
        looked_up_sizes(args.weight, args.indices), args.weight.options());
  }

  static OpInputs inputs(const Args& args) { return {args.weight}; }
  static at::Tensor& linear_in(Args& args) { return args.weight; }

  static void save(SavedContext* ctx, const Args& args, const at::Tensor&) {
    // The table is kept for its layout, not as a variable: a write into it
    // before the backward pass changes nothing.
    ctx->save_for_backward({args.indices});
    keep(ctx, Args{args.weight.detach(), {}, args.options, args.rows});
  }

  static Gradients backward(SavedContext* ctx, const Gradients& grads) {
    const auto& args = kept<Args>(ctx);
    return {call_op<LookupBackward>(
        {grads[0],
         ctx->get_saved_variables()[0],
         args.weight,
         args.options,
         args.rows})};
  }
};

}  // namespace

at::Tensor recorded_lookup(const Lookup::Args& args) {
  return differentiable_op<LookupOp>(args);
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
  define_op<LookupOp>(ops);
  define_op<LookupBackward>(ops);
}

}  // namespace tessera::detail
