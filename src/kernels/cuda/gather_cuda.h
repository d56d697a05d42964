// gather.h on CUDA tensors. Same contracts, but arguments were checked, `dim`
// is not negative, and a bad index gives zeros and is raised by a later call:
// see device_errors.h. Without CUDA's compiler these are compositions of ATen
// ops (no_cuda.cpp).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace tessera::detail {

// gather_part.
at::Tensor gather_part_cuda(
    const at::Tensor& self,
    int64_t dim,
    const at::Tensor& index,
    int64_t first,
    int64_t size);

// gather_part_backward.
at::Tensor gather_part_backward_cuda(
    const at::Tensor& grad,
    int64_t dim,
    const at::Tensor& index,
    c10::IntArrayRef local_sizes,
    int64_t first,
    int64_t size);

}  // namespace tessera::detail
