// Kernels come in families, each a table of functions by device: those of the
// CPU, those of GPUs (cuda/), and compositions of ATen ops for all others.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::detail {

// What serves the device of `tensor`.
template <typename T>
const T& for_device(
    const at::Tensor& tensor, const T& cpu, const T& cuda, const T& composed) {
  return tensor.is_cpu() ? cpu : tensor.is_cuda() ? cuda : composed;
}

}  // namespace tessera::detail
