// Which dimensions a reduction is over, and how much.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace tessera::detail {

using ReducedDims = c10::SmallVector<int64_t, 5>;

// `dims` made non-negative; all dimensions where there are none. Throws
// c10::IndexError for one out of range.
ReducedDims reduced_dims(const at::Tensor& self, at::OptionalIntArrayRef dims);

// How many elements of the whole tensor go into one of the result.
int64_t reduced_count(const at::Tensor& self, at::IntArrayRef dims);

}  // namespace tessera::detail
