#include "dispatch/tangents.h"

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/forward_grad.h>

#include "dispatch/autograd.h"
#include "dispatch/tensor.h"

namespace tessera::detail {

namespace {

// Terms of a sum or an average have tangents, but no op knows them if the
// tangent itself is not such a sum.
bool has_tangents_of_parts(PlacementsRef value, PlacementsRef tangent) {
  for (size_t m = 0; m < value.size(); ++m) {
    const auto& placement = value[m];
    const bool adds_up =
        placement == Partial() || placement == Partial(ReduceOp::Avg);
    if (placement.is_partial() && !(adds_up && tangent[m] == placement)) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool may_have_tangents() {
  return torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
}

void set_tangent(const at::Tensor& tensor, const at::Tensor& tangent) {
  if (tangent.defined()) {
    tensor._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
  }
}

std::vector<at::Tensor> tangents_of(at::TensorList tensors) {
  std::vector<at::Tensor> tangents;
  for (const auto& tensor : tensors) {
    auto tangent = tangent_of(tensor);
    tangents.push_back(
        tangent.defined() ? tangent : at::zeros_like(tensor.detach()));
  }
  return tangents;
}

at::Tensor tangent_in_layout(
    const at::Tensor& distributed, std::string_view caller) {
  const auto tangent = tangent_of(distributed);
  if (!tangent.defined()) {
    return tangent;
  }
  const PlacementsRef wanted = distributed_meta(distributed).spec->placements;
  TORCH_CHECK_NOT_IMPLEMENTED(
      has_tangents_of_parts(wanted, distributed_meta(tangent).spec->placements),
      "[",
      caller,
      "] forward-mode differentiation of the parts of a tensor with "
      "placements ",
      to_string(wanted),
      " is not supported: redistribute it first, such that nothing is pending");
  return redistribute(tangent, wanted, caller);
}

void refuse_tangents(std::string_view caller, at::TensorList tensors) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !has_tangent(tensors),
      "[",
      caller,
      "] forward-mode differentiation (make_dual, torch.func.jvp) of this op "
      "is not supported for distributed tensors: use a backward pass "
      "(torch.autograd.grad, torch.func.vjp)");
}

}  // namespace tessera::detail
