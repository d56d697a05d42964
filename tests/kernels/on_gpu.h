// The kernels of a GPU in tests of all kernels: called with tensors of the CPU,
// which they are given as copies. Only where there is a GPU.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

#include "kernels/bag/bag.h"
#include "kernels/device_errors.h"

namespace tessera::detail {

inline bool has_gpu() { return at::globalContext().hasCUDA(); }

inline at::Tensor to_gpu(const at::Tensor& tensor) {
  return tensor.to(at::kCUDA);
}

inline std::optional<at::Tensor> to_gpu(
    const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() ? std::optional(to_gpu(*tensor)) : std::nullopt;
}

inline BagIndices to_gpu(BagIndices input) {
  input.indices = to_gpu(input.indices);
  input.offsets = to_gpu(input.offsets);
  input.per_sample_weights = to_gpu(input.per_sample_weights);
  input.counts = to_gpu(input.counts);
  return input;
}

// Waits for the kernels that make `tensor`, and throws what they have reported.
inline at::Tensor from_gpu(const at::Tensor& tensor) {
  at::Tensor copy = tensor.cpu();  // waits, unless there is nothing to copy
  c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(
      tensor.device().index());
  raise_device_errors();
  return copy;
}

}  // namespace tessera::detail
