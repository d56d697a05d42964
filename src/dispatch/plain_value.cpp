#include "dispatch/plain_value.h"

#include <c10/util/Exception.h>

namespace tessera::detail {

namespace {

constexpr c10::DispatchKeySet kWrappers({
    c10::DispatchKey::FuncTorchBatched,
    c10::DispatchKey::FuncTorchGradWrapper,
    c10::DispatchKey::Batched,
    c10::DispatchKey::Functionalize,
});

const char* what_is_odd_about(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return "an undefined one";
  }
  // First: what is wrapped may be anything.
  if (tensor.key_set().has_any(kWrappers)) {
    return "one that is wrapped by a functorch transform (vmap, grad or "
           "functionalize): distribute tensors outside the transform";
  }
  if (tensor.is_quantized()) {
    return "a quantized one: distribute what dequantize() gives";
  }
  if (tensor.is_nested()) {
    return "a nested one: distribute what to_padded_tensor() gives";
  }
  if (tensor.layout() != at::kStrided) {
    return "one that is not strided (sparse or mkldnn): distribute what "
           "to_dense() gives";
  }
  return nullptr;
}

}  // namespace

void check_plain_value(const at::Tensor& tensor, const char* caller) {
  const char* odd = what_is_odd_about(tensor);
  TORCH_CHECK_TYPE(
      odd == nullptr, "[", caller, "] expected an ordinary tensor, got ", odd);
}

}  // namespace tessera::detail
