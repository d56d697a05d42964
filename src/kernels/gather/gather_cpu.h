// The CPU kernels behind gather.h. Same contracts, but arguments were checked
// and are on the CPU, and `dim` is not negative.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace tessera::detail {

// gather_part. One pass: range test, copy or zero, and the first bad index.
at::Tensor gather_part_cpu(
    const at::Tensor& self,
    int64_t dim,
    const at::Tensor& index,
    int64_t first,
    int64_t size);

// gather_part_backward.
at::Tensor gather_part_backward_cpu(
    const at::Tensor& grad,
    int64_t dim,
    const at::Tensor& index,
    c10::IntArrayRef local_sizes,
    int64_t first,
    int64_t size);

// Throws the c10::IndexError of a gather along `dim` of `size`.
[[noreturn]] void throw_outside_dimension(
    int64_t index, int64_t dim, int64_t size);

}  // namespace tessera::detail
