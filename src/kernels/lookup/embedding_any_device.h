// embedding.h as compositions of ATen ops, for devices without kernels of ours.
// Same contracts, but arguments were checked, and finding a bad index waits for
// the device. On meta tensors, which have no indices to look at, there is no
// sparse gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::detail {

// Throws c10::IndexError that names the first index outside a table of
// `table_rows` rows.
void check_indices_any_device(const at::Tensor& indices, int64_t table_rows);

// lookup_rows.
at::Tensor lookup_rows_any_device(
    const at::Tensor& weight,
    const at::Tensor& indices,
    int64_t first_row,
    int64_t table_rows);

// lookup_rows_backward.
at::Tensor lookup_rows_backward_any_device(
    const at::Tensor& grad,
    const at::Tensor& indices,
    int64_t first_row,
    int64_t rows,
    int64_t table_rows,
    int64_t padding_idx,
    bool scale_grad_by_freq);

// lookup_rows_sparse_backward.
at::Tensor lookup_rows_sparse_backward_any_device(
    const at::Tensor& grad,
    const at::Tensor& indices,
    int64_t first_row,
    int64_t rows,
    int64_t table_rows,
    int64_t padding_idx);

}  // namespace tessera::detail
