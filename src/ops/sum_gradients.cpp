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
template <class Op, class Schema = typename Op::schema>
struct Recorded;

template <class Op, class... Args>
struct Recorded<Op, at::Tensor(const at::Tensor&, Args...)> {
  static at::Tensor call(
      c10::DispatchKeySet keys, const at::Tensor& self, Args... args) {
    if (!is_recorded(self)) {
      return Op::redispatch(keys & c10::after_autograd_keyset, self, args...);
    }
    return by_formula<Op>(
        keys, wants_layout(self) ? with_grad_in_layout(self) : self, args...);
  }
};

}  // namespace

void register_sum_gradients(OpRegistry& ops) {
  ops.above_autograd("sum", TORCH_FN(Recorded<at::_ops::sum>::call));
  ops.above_autograd(
      "sum.dim_IntList", TORCH_FN(Recorded<at::_ops::sum_dim_IntList>::call));
  ops.above_autograd("mean", TORCH_FN(Recorded<at::_ops::mean>::call));
  ops.above_autograd("mean.dim", TORCH_FN(Recorded<at::_ops::mean_dim>::call));
}

}  // namespace tessera::detail
