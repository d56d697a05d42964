// Forward-mode differentiation (torch.autograd.forward_ad, torch.func.jvp): a
// tensor may have a tangent. Formulas of ATen carry it through its ops. What is
// written by hand here carries it by these, or refuses it: it is never lost.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "tessera/placement.h"

namespace tessera::detail {

// The tangent of a tensor; undefined where it has none.
inline at::Tensor tangent_of(const at::Tensor& tensor) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(
      tensor.unsafeGetTensorImpl()->autograd_meta());
  // Of a view its base may have it.
  return meta != nullptr && (meta->fw_grad_ != nullptr || meta->is_view_)
             ? tensor._fw_grad(/*level=*/0)
             : at::Tensor();
}

inline bool has_tangent(const at::Tensor& tensor) {
  return tensor.defined() && tangent_of(tensor).defined();
}
inline bool has_tangent(at::TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return has_tangent(tensor);
  });
}

// Whether a level of forward-mode differentiation is entered.
bool may_have_tangents();

// Gives a tensor a tangent; none if it is undefined.
void set_tangent(const at::Tensor& tensor, const at::Tensor& tangent);

// The tangents of tensors of which one has any: zeros where one has none.
std::vector<at::Tensor> tangents_of(at::TensorList tensors);

// The tangent of a distributed tensor in its layout, as its parts have it.
// Undefined where it has none. Throws c10::NotImplementedError where parts of
// the tensor are no linear function of it, and so have no tangents.
at::Tensor tangent_in_layout(
    const at::Tensor& distributed, std::string_view caller);

// Throws c10::NotImplementedError if one of the tensors has a tangent, which
// `caller` does not carry on.
void refuse_tangents(std::string_view caller, at::TensorList tensors);

}  // namespace tessera::detail
