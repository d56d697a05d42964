// The gradients of tessera::lookup and tessera::gather_part: each is an op of
// its own that takes the tensor differentiated for its layout, so that a table
// cut by rows gets a gradient cut by rows. They can be differentiated again.
#include <ATen/ops/eq.h>
#include <torch/csrc/autograd/custom_function.h>

#include "dispatch/typed_op.h"
#include "embedding/embedding.h"
#include "embedding/part_ops.h"

namespace tessera::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalInt = std::optional<int64_t>;

using LookupOp = at::Tensor(
    const at::Tensor&,
    const at::Tensor&,
    int64_t,
    bool,
    bool,
    int64_t,
    OptionalInt);
using LookupBackwardOp = at::Tensor(
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&,
    int64_t,
    bool,
    bool,
    int64_t,
    OptionalInt);
using GatherOp = at::Tensor(
    const at::Tensor&, int64_t, const at::Tensor&, int64_t, OptionalInt);
using GatherBackwardOp = at::Tensor(
    const at::Tensor&,
    int64_t,
    const at::Tensor&,
    const at::Tensor&,
    int64_t,
    OptionalInt);

const auto& lookup_op() {
  static const auto op = typed_op<LookupOp>("tessera::lookup");
  return op;
}
const auto& lookup_backward_op() {
  static const auto op = typed_op<LookupBackwardOp>("tessera::lookup_backward");
  return op;
}
const auto& gather_op() {
  static const auto op = typed_op<GatherOp>("tessera::gather_part");
  return op;
}
const auto& gather_backward_op() {
  static const auto op =
      typed_op<GatherBackwardOp>("tessera::gather_part_backward");
  return op;
}

// Which part of the table or of the dimension a plain tensor holds.
struct Part {
  int64_t first;
  OptionalInt size;
};

void save_part(AutogradContext* ctx, const Part& part) {
  ctx->saved_data["first"] = part.first;
  ctx->saved_data["size"] = part.size;
}

Part saved_part(AutogradContext* ctx) {
  return {
      ctx->saved_data["first"].toInt(),
      ctx->saved_data["size"].toOptional<int64_t>()};
}

void save_args(AutogradContext* ctx, const LookupArgs& args) {
  ctx->saved_data["padding_idx"] = args.padding_idx;
  ctx->saved_data["scale_grad_by_freq"] = args.scale_grad_by_freq;
  ctx->saved_data["sparse"] = args.sparse;
}

LookupArgs saved_args(AutogradContext* ctx) {
  return {
      ctx->saved_data["padding_idx"].toInt(),
      ctx->saved_data["scale_grad_by_freq"].toBool(),
      ctx->saved_data["sparse"].toBool()};
}

// The tensor differentiated, for its layout: not saved as a variable, since a
// write into it before the backward changes nothing.
void save_like(AutogradContext* ctx, const at::Tensor& tensor) {
  ctx->saved_data["like"] = tensor.detach();
}

class Lookup : public torch::autograd::Function<Lookup> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& weight,
      const at::Tensor& indices,
      const LookupArgs& args,
      const Part& part) {
    ctx->save_for_backward({indices});
    save_like(ctx, weight);
    save_args(ctx, args);
    save_part(ctx, part);
    at::AutoDispatchBelowADInplaceOrView below;
    return lookup(weight, indices, args, part.first, part.size);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto part = saved_part(ctx);
    return {
        lookup_backward(
            grads[0],
            ctx->get_saved_variables()[0],
            ctx->saved_data["like"].toTensor(),
            saved_args(ctx),
            part.first,
            part.size),
        at::Tensor(),
        at::Tensor(),
        at::Tensor()};
  }
};

class LookupBackward : public torch::autograd::Function<LookupBackward> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& grad,
      const at::Tensor& indices,
      const at::Tensor& weight,
      const LookupArgs& args,
      const Part& part) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !args.sparse && !args.scale_grad_by_freq,
        "[embedding] a gradient that is sparse or scaled by frequency cannot "
        "be differentiated again");
    ctx->save_for_backward({indices});
    save_args(ctx, args);
    save_part(ctx, part);
    at::AutoDispatchBelowADInplaceOrView below;
    return lookup_backward(grad, indices, weight, args, part.first, part.size);
  }

  // The padding row took nothing from the gradient.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto indices = ctx->get_saved_variables()[0];
    const auto args = saved_args(ctx);
    const auto part = saved_part(ctx);
    auto grad = lookup(grads[0], indices, args, part.first, part.size);
    if (args.padding_idx >= 0) {
      grad =
          grad.masked_fill(at::eq(indices, args.padding_idx).unsqueeze(-1), 0);
    }
    return {grad, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

class GatherPart : public torch::autograd::Function<GatherPart> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& self,
      int64_t dim,
      const at::Tensor& index,
      const Part& part) {
    ctx->save_for_backward({index});
    ctx->saved_data["dim"] = dim;
    save_like(ctx, self);
    save_part(ctx, part);
    at::AutoDispatchBelowADInplaceOrView below;
    return gather_op().call(self, dim, index, part.first, part.size);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto part = saved_part(ctx);
    return {
        gather_backward_op().call(
            grads[0],
            ctx->saved_data["dim"].toInt(),
            ctx->get_saved_variables()[0],
            ctx->saved_data["like"].toTensor(),
            part.first,
            part.size),
        at::Tensor(),
        at::Tensor(),
        at::Tensor()};
  }
};

class GatherPartBackward
    : public torch::autograd::Function<GatherPartBackward> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& grad,
      int64_t dim,
      const at::Tensor& index,
      const at::Tensor& self,
      const Part& part) {
    ctx->save_for_backward({index});
    ctx->saved_data["dim"] = dim;
    save_part(ctx, part);
    at::AutoDispatchBelowADInplaceOrView below;
    return gather_backward_op().call(
        grad, dim, index, self, part.first, part.size);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto part = saved_part(ctx);
    return {
        gather_op().call(
            grads[0],
            ctx->saved_data["dim"].toInt(),
            ctx->get_saved_variables()[0],
            part.first,
            part.size),
        at::Tensor(),
        at::Tensor(),
        at::Tensor(),
        at::Tensor()};
  }
};

at::Tensor lookup_autograd(
    const at::Tensor& weight,
    const at::Tensor& indices,
    int64_t padding_idx,
    bool scale_grad_by_freq,
    bool sparse,
    int64_t first_row,
    OptionalInt table_rows) {
  const LookupArgs args{padding_idx, scale_grad_by_freq, sparse};
  if (records(weight)) {
    return Lookup::apply(weight, indices, args, Part{first_row, table_rows});
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return lookup(weight, indices, args, first_row, table_rows);
}

at::Tensor lookup_backward_autograd(
    const at::Tensor& grad,
    const at::Tensor& indices,
    const at::Tensor& weight,
    int64_t padding_idx,
    bool scale_grad_by_freq,
    bool sparse,
    int64_t first_row,
    OptionalInt table_rows) {
  const LookupArgs args{padding_idx, scale_grad_by_freq, sparse};
  if (records(grad)) {
    return LookupBackward::apply(
        grad, indices, weight, args, Part{first_row, table_rows});
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return lookup_backward(grad, indices, weight, args, first_row, table_rows);
}

at::Tensor gather_part_autograd(
    const at::Tensor& self,
    int64_t dim,
    const at::Tensor& index,
    int64_t first,
    OptionalInt size) {
  if (records(self)) {
    return GatherPart::apply(self, dim, index, Part{first, size});
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return gather_op().call(self, dim, index, first, size);
}

at::Tensor gather_part_backward_autograd(
    const at::Tensor& grad,
    int64_t dim,
    const at::Tensor& index,
    const at::Tensor& self,
    int64_t first,
    OptionalInt size) {
  if (records(grad)) {
    return GatherPartBackward::apply(grad, dim, index, self, Part{first, size});
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return gather_backward_op().call(grad, dim, index, self, first, size);
}

}  // namespace

at::Tensor lookup(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const LookupArgs& args,
    int64_t first_row,
    OptionalInt table_rows) {
  return lookup_op().call(
      weight,
      indices,
      args.padding_idx,
      args.scale_grad_by_freq,
      args.sparse,
      first_row,
      table_rows);
}

at::Tensor lookup_backward(
    const at::Tensor& grad,
    const at::Tensor& indices,
    const at::Tensor& weight,
    const LookupArgs& args,
    int64_t first_row,
    OptionalInt table_rows) {
  return lookup_backward_op().call(
      grad,
      indices,
      weight,
      args.padding_idx,
      args.scale_grad_by_freq,
      args.sparse,
      first_row,
      table_rows);
}

at::Tensor gather_distributed(
    const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  return gather_op().call(self, dim, index, 0, std::nullopt);
}

void register_part_gradients(OpRegistry& ops) {
  ops.gradient("lookup", &lookup_autograd);
  ops.gradient("lookup_backward", &lookup_backward_autograd);
  ops.gradient("gather_part", &gather_part_autograd);
  ops.gradient("gather_part_backward", &gather_part_backward_autograd);
}

}  // namespace tessera::detail
