// aten::gather on distributed tensors, by tessera::gather_part: gather from a
// part of a dimension, with its gradient, which can be differentiated again.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>

#include "dispatch/own_op.h"
#include "kernels/gather/gather.h"
#include "ops/all_ops.h"

namespace tessera::detail {

namespace {

// What a gather takes. Kernels see which part of the dimension `self` holds.
struct Taken {
  int64_t dim = 0;
  at::Tensor index;

  HeldPlaces of(const at::Tensor& self, const HeldPart& part) const {
    const int64_t held = self.dim() == 0 ? 1 : self.size(dim);
    return {dim, index, part.first, part.size.value_or(held)};
  }
};

// The gradient of `self`, which is read only for its layout and size.
struct GatherPartBackward {
  static constexpr const char* kSchema =
      "gather_part_backward(Tensor grad, int dim, Tensor index, Tensor self, "
      "*, int first=0, int? size=None) -> Tensor";
  using Result = at::Tensor;
  struct Args {
    at::Tensor grad;
    Taken taken;
    at::Tensor self;
    HeldPart part;
  };
  static at::Tensor on_data(const Args& args) {
    return gather_part_backward(
        args.grad, args.taken.of(args.self, args.part), args.self.sizes());
  }
  static at::Tensor on_meta(const Args& args) {
    return at::empty(args.self.sizes(), args.grad.options());
  }
  static OpInputs inputs(const Args& args) { return {args.grad}; }
  static at::Tensor& linear_in(Args& args) { return args.grad; }
  static void save(SavedContext* ctx, const Args& args, const at::Tensor&) {
    ctx->save_for_backward({args.taken.index});
    keep(ctx, Args{{}, {args.taken.dim, {}}, {}, args.part});
  }
  static Gradients backward(SavedContext* ctx, const Gradients& grads);
};

struct GatherPart {
  static constexpr const char* kSchema =
      "gather_part(Tensor self, int dim, Tensor index, *, int first=0, "
      "int? size=None) -> Tensor";
  using Result = at::Tensor;
  struct Args {
    at::Tensor self;
    Taken taken;
    HeldPart part;
  };
  static at::Tensor on_data(const Args& args) {
    return gather_part(args.self, args.taken.of(args.self, args.part));
  }
  static at::Tensor on_meta(const Args& args) {
    return at::empty(args.taken.index.sizes(), args.self.options());
  }
  static OpInputs inputs(const Args& args) { return {args.self}; }
  static at::Tensor& linear_in(Args& args) { return args.self; }
  static void save(SavedContext* ctx, const Args& args, const at::Tensor&) {
    ctx->save_for_backward({args.taken.index});
    keep(ctx, Args{args.self.detach(), {args.taken.dim, {}}, args.part});
  }
  static Gradients backward(SavedContext* ctx, const Gradients& grads) {
    const auto& args = kept<Args>(ctx);
    return {call_op<GatherPartBackward>(
        {grads[0],
         {args.taken.dim, ctx->get_saved_variables()[0]},
         args.self,
         args.part})};
  }
};

Gradients GatherPartBackward::backward(
    SavedContext* ctx, const Gradients& grads) {
  const auto& args = kept<Args>(ctx);
  return {call_op<GatherPart>(
      {grads[0], {args.taken.dim, ctx->get_saved_variables()[0]}, args.part})};
}

at::Tensor gather(
    const at::Tensor& self,
    int64_t dim,
    const at::Tensor& index,
    bool sparse_grad) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !sparse_grad,
      "[gather] sparse gradients of distributed tensors are not supported: "
      "call it with sparse_grad = false");
  at::maybe_wrap_dim(dim, self.dim());
  // ATen takes an index without elements whatever its dtype and dimensions.
  if (index.numel() == 0 && is_dtensor(self) && is_dtensor(index)) {
    return self.dim() == index.dim()
               ? call_op<GatherPart>({self, {dim, index.to(at::kLong)}, {}})
               : self.reshape({-1}).narrow(0, 0, 0).reshape(index.sizes());
  }
  // A tensor without dimensions counts as one of a single element.
  if (self.dim() == 0 && index.dim() == 1) {
    return call_op<GatherPart>({self.unsqueeze(0), {dim, index}, {}});
  }
  if (self.dim() == 1 && index.dim() == 0) {
    return call_op<GatherPart>({self, {dim, index.unsqueeze(0)}, {}})
        .squeeze(0);
  }
  return call_op<GatherPart>({self, {dim, index}, {}});
}

std::string explain_gather(c10::ArrayRef<c10::IValue> args) {
  return explain_op<GatherPart>(
      {args[0].toTensor(), {args[1].toInt(), args[2].toTensor()}, {}});
}

}  // namespace

void register_gather(OpRegistry& ops) {
  define_op<GatherPart>(ops);
  define_op<GatherPartBackward>(ops);
  ops.own_kernel("gather", &gather);
  ops.above_autograd("gather", &gather);
  ops.explained_by("gather", &explain_gather);
}

}  // namespace tessera::detail
