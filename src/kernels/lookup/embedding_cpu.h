// The CPU kernels behind embedding.h. Same contracts, but arguments were
// checked and are on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::detail {

// lookup_rows. One pass: range test, copy of a row or zeros, and the first bad
// index.
at::Tensor lookup_rows_cpu(
    const at::Tensor& weight,
    const at::Tensor& indices,
    int64_t first_row,
    int64_t table_rows);

// lookup_rows_backward.
at::Tensor lookup_rows_backward_cpu(
    const at::Tensor& grad,
    const at::Tensor& indices,
    int64_t first_row,
    int64_t rows,
    int64_t table_rows,
    int64_t padding_idx,
    bool scale_grad_by_freq);

// lookup_rows_sparse_backward.
at::Tensor lookup_rows_sparse_backward_cpu(
    const at::Tensor& grad,
    const at::Tensor& indices,
    int64_t first_row,
    int64_t rows,
    int64_t table_rows,
    int64_t padding_idx);

}  // namespace tessera::detail
