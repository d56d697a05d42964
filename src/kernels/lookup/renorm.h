// Rows of a part of a table scaled down to a norm, in place.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::detail {

// The `norm_type`-norm of a row is at most `max_norm`.
struct NormLimit {
  double max_norm;
  double norm_type;
};

// `weight`, [rows, d], holds rows [first_row, first_row + rows). Of those, each
// that `wanted` names (int64, distinct, ascending, of the whole table) is
// scaled as aten::embedding_renorm_ scales it. Does not communicate; on a GPU
// it does not wait for the device.
void renorm_rows_(
    const at::Tensor& weight,
    const at::Tensor& wanted,
    int64_t first_row,
    const NormLimit& limit);

// Of the ascending `wanted`, those in [first_row, first_row + rows), counted
// from first_row. Waits for the device.
at::Tensor held_rows(const at::Tensor& wanted, int64_t first_row, int64_t rows);

}  // namespace tessera::detail
