// Fills a shard with the random numbers that its elements have in the whole
// tensor, whatever the layout and the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "kernels/random/random_draw.h"

namespace tessera::detail {

// What a shard holds of one dimension: [begin, begin + size) of `whole`.
struct RandomExtent {
  int64_t begin;
  int64_t size;
  int64_t whole;
};
using RandomRegion = c10::SmallVector<RandomExtent, 5>;

// Overwrites `shard`, of any dtype but a complex one and any strides, whose
// sizes are those of `region`. Numbers have the bits that the dtype holds, stay
// within their bounds when they are rounded to it, and integers are exact.
void fill_random_(
    const at::Tensor& shard,
    const RandomDraw& draw,
    RandomStream stream,
    const RandomRegion& region);

// The same on a CUDA device; false, and nothing done, where there is no kernel
// for it.
bool fill_random_cuda(
    const at::Tensor& shard,
    const RandomDraw& draw,
    RandomStream stream,
    const RandomRegion& region);

}  // namespace tessera::detail
