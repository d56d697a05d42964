// aten::gather out of a part of a tensor.
#pragma once

#include "kernels/cuda/sorted.h"

namespace tessera::detail::cuda {

inline constexpr int kMostDims = 12;

// Entry i of a contiguous index of `sizes` names an element of a part whose
// strides are `strides`, along `dim`, of which the part holds [first,
// first + held) of `size`.
struct GatherPlaces {
  Integers index;
  int dims;
  int dim;
  int64_t sizes[kMostDims];
  int64_t strides[kMostDims];
  int64_t first;
  int64_t held;
  int64_t size;
};

struct GatherCopy {
  const void* self;
  int element_bytes;  // 1, 2, 4, 8 or 16
  void* out;
};

// out[i] is the element that entry i names where it is held, 0 elsewhere.
cudaError_t gather(
    const GatherPlaces& places, const GatherCopy& copy, const Launch& launch);

// Writes for each entry the element (strides are then those of a contiguous
// part, of `elements` in all) as its row, to memory.rows[0] and .places[0].
cudaError_t gather_entries(
    const GatherPlaces& places,
    int64_t elements,
    const SortMemory& memory,
    const Launch& launch);

}  // namespace tessera::detail::cuda
