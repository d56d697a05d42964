// gather.h as compositions of ATen ops, for devices without kernels of ours.
// Same contracts, but arguments were checked, `dim` is not negative, and two
// points: finding a bad index waits for the device (on meta tensors nothing is
// looked for), and the order of additions is the device's.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace tessera::detail {

// gather_part.
at::Tensor gather_part_any_device(
    const at::Tensor& self,
    int64_t dim,
    const at::Tensor& index,
    int64_t first,
    int64_t size);

// gather_part_backward.
at::Tensor gather_part_backward_any_device(
    const at::Tensor& grad,
    int64_t dim,
    const at::Tensor& index,
    c10::IntArrayRef local_sizes,
    int64_t first,
    int64_t size);

}  // namespace tessera::detail
