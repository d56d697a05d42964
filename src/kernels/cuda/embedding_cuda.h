// embedding.h on CUDA tensors. Same contracts, but arguments were checked, and
// a bad index gives zeros and is raised by a later call: see device_errors.h.
// Without CUDA's compiler these are compositions of ATen ops (no_cuda.cpp).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::detail {

// lookup_rows.
at::Tensor lookup_rows_cuda(
    const at::Tensor& weight,
    const at::Tensor& indices,
    int64_t first_row,
    int64_t table_rows);

// lookup_rows_backward.
at::Tensor lookup_rows_backward_cuda(
    const at::Tensor& grad,
    const at::Tensor& indices,
    int64_t first_row,
    int64_t rows,
    int64_t table_rows,
    int64_t padding_idx,
    bool scale_grad_by_freq);

// lookup_rows_sparse_backward. Waits for the device once, to learn how many
// rows there are.
at::Tensor lookup_rows_sparse_backward_cuda(
    const at::Tensor& grad,
    const at::Tensor& indices,
    int64_t first_row,
    int64_t rows,
    int64_t table_rows,
    int64_t padding_idx);

}  // namespace tessera::detail
