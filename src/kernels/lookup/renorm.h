// Rows of a part of a table scaled down to a norm, in place.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/lookup/embedding.h"

namespace tessera::detail {

// The `norm_type`-norm of a row is at most `max_norm`.
struct NormLimit {
  double max_norm;
  double norm_type;
};

// Of the rows of `weight`, [held.rows, d], each that `held.indices` name, once
// or more often, is scaled as aten::embedding_renorm_ scales it. Throws
// c10::IndexError, which names the first bad index, if one is outside the
// table; on a GPU a later call does, and this one does not wait for the device.
// Does not communicate.
void renorm_rows_(
    const at::Tensor& weight, const HeldRows& held, const NormLimit& limit);

// Of the ascending `wanted`, those in [first_row, first_row + rows), counted
// from first_row. Waits for the device.
at::Tensor held_rows(const at::Tensor& wanted, int64_t first_row, int64_t rows);

}  // namespace tessera::detail
