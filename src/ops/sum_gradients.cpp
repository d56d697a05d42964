// Ops whose derivative formulas know only the sizes of their input: the
// gradient of a sum or a mean is expanded from what may be one number. It would
// be replicated, whatever the layout of what was summed, and every rank would
// go on with all of it. For these ops it comes in the input's layout.
#include "ops/all_ops.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/sum_ops.h>
#include <c10/core/DispatchKeySet.h>

#include "dispatch/agreement.h"
#include "dispatch/autograd.h"
#include "dispatch/tensor.h"
#include "ops/by_formula.h"

namespace tessera::detail {

namespace {

using Dtype = std::optional<at::ScalarType>;

bool is_recorded(const at::Tensor& tensor) {
  return (at::GradMode::is_enabled() && tensor.requires_grad()) ||
         tensor._fw_grad(/*level=*/0).defined();
}

// Whether ranks have parts of their own of a tensor whose gradient is wanted.
// Tangents of forward-mode derivatives belong to the tensor itself.
bool wants_layout(const at::Tensor& tensor) {
  const Spec& spec = *distributed_meta(tensor).spec;
  return tensor.requires_grad() && !tensor._fw_grad(/*level=*/0).defined() &&
         differs_over_ranks(spec.placements, spec.mesh);
}

// ATen's own formula, of an input that sees to its gradient's layout.
template <class Op, class... Args>
at::Tensor recorded(
    c10::DispatchKeySet keys, const at::Tensor& self, Args... args) {
  if (!is_recorded(self)) {
    return Op::redispatch(keys & c10::after_autograd_keyset, self, args...);
  }
  return by_formula<Op>(
      keys, wants_layout(self) ? with_grad_in_layout(self) : self, args...);
}

at::Tensor recorded_sum(
    c10::DispatchKeySet keys, const at::Tensor& self, Dtype dtype) {
  return recorded<at::_ops::sum>(keys, self, dtype);
}

at::Tensor recorded_sum_dim(
    c10::DispatchKeySet keys,
    const at::Tensor& self,
    at::OptionalIntArrayRef dim,
    bool keepdim,
    Dtype dtype) {
  return recorded<at::_ops::sum_dim_IntList>(keys, self, dim, keepdim, dtype);
}

at::Tensor recorded_mean(
    c10::DispatchKeySet keys, const at::Tensor& self, Dtype dtype) {
  return recorded<at::_ops::mean>(keys, self, dtype);
}

at::Tensor recorded_mean_dim(
    c10::DispatchKeySet keys,
    const at::Tensor& self,
    at::OptionalIntArrayRef dim,
    bool keepdim,
    Dtype dtype) {
  return recorded<at::_ops::mean_dim>(keys, self, dim, keepdim, dtype);
}

}  // namespace

void register_sum_gradients(OpRegistry& ops) {
  ops.above_autograd("sum", TORCH_FN(recorded_sum));
  ops.above_autograd("sum.dim_IntList", TORCH_FN(recorded_sum_dim));
  ops.above_autograd("mean", TORCH_FN(recorded_mean));
  ops.above_autograd("mean.dim", TORCH_FN(recorded_mean_dim));
}

}  // namespace tessera::detail
