// aten::gather out of a part of a tensor: what a rank that holds some of the
// gathered dimension computes. Plain functions of plain tensors, without
// autograd and without communication.
//
// Common to both: `index` is int32 or int64 (c10::TypeError otherwise), has as
// many dimensions as the part and, but for `dim`, is nowhere longer than it.
// `dim` may be negative. An index outside the dimension throws c10::IndexError,
// which names the first one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace tessera::detail {

// Places in [0, size) of the whole dimension `dim`, of which what is held here
// begins at `first`.
struct HeldPlaces {
  int64_t dim;
  const at::Tensor& index;
  int64_t first;
  int64_t size;
};

// Returns a contiguous tensor of the shape of `index`: the entries of `self`,
// of any dtype, where they are held here, zeros elsewhere.
at::Tensor gather_part(const at::Tensor& self, const HeldPlaces& places);

// The gradient of gather_part by `self`, of size `local_sizes` and the dtype of
// `grad`, which has the shape of `index`: each entry of `grad` is added to the
// entry it was taken from, where that is held here. Terms are added in the
// order of `index`.
at::Tensor gather_part_backward(
    const at::Tensor& grad,
    const HeldPlaces& places,
    c10::IntArrayRef local_sizes);

}  // namespace tessera::detail
