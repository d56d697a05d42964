// Rows of a part of a table scaled down to a norm, in place.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::detail {

// `weight`, [rows, d], holds rows [first_row, first_row + rows). Of those, each
// that `wanted` names (int64, distinct, ascending, of the whole table) is
// scaled as aten::embedding_renorm_ scales it. Does not communicate.
void renorm_rows_(
    const at::Tensor& weight,
    const at::Tensor& wanted,
    int64_t first_row,
    double max_norm,
    double norm_type);

// The same on a CUDA device, without waiting for it; false, and nothing done,
// where there is no kernel for it.
bool renorm_rows_cuda(
    const at::Tensor& weight,
    const at::Tensor& wanted,
    int64_t first_row,
    double max_norm,
    double norm_type);

}  // namespace tessera::detail
