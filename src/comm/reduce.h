// The one local reduction that both worlds use, so that they give the same
// bits: terms are taken in order, half and bfloat16 are summed in float.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "tessera/placement.h"

namespace tessera::detail {

// Throws c10::ValueError, tagged with `caller`, where `op` has no meaning for
// the type: Avg of integers and bool, Min and Max of complex numbers.
void check_reducible(ReduceOp op, c10::ScalarType dtype, const char* caller);

// Writes the reduction of `terms` to `out`. Requires: at least one term, all of
// out's shape, type and device; `out` is contiguous and overlaps none of them.
void reduce_into(
    const at::Tensor& out, c10::ArrayRef<at::Tensor> terms, ReduceOp op);

// The same to each of `outs`, of which there is at least one.
void reduce_into_each(
    c10::ArrayRef<at::Tensor> outs,
    c10::ArrayRef<at::Tensor> terms,
    ReduceOp op);

}  // namespace tessera::detail
