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

// Whether there are elements, but nothing in memory to read them from: fake
// tensors, zeros that nobody has written, wrappers of other tensors.
bool lacks_memory(const at::Tensor& tensor) {
  if (!tensor.has_storage()) {
    return true;
  }
  if (tensor.is_meta() || tensor.numel() == 0) {
    return false;
  }
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  return storage.device_type() == c10::DeviceType::Meta ||
         storage._mutable_data_ptr_no_checks().get() == nullptr;
}

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
  if (lacks_memory(tensor)) {
    return "one without memory (a fake tensor, an efficient zero tensor, or a "
           "wrapper of another tensor): distribute what holds the elements";
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
