// Kernels come in families, each a table of functions by device: those of the
// CPU, those of GPUs (cuda/), and compositions of ATen ops for all others.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::detail {

// The table that serves the device of `tensor`.
template <class Kernels>
const Kernels& kernels_for(const at::Tensor& tensor) {
  return tensor.is_cpu()    ? Kernels::cpu()
         : tensor.is_cuda() ? Kernels::cuda()
                            : Kernels::composed();
}

}  // namespace tessera::detail
