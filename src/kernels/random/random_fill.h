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

// Its kernel for all devices but GPUs, for a draw that was fitted to the dtype
// of `shard`: draws on the host and copies.
decltype(fill_random_) fill_random_on_host;
// That of GPUs; without CUDA's compiler the one above.
decltype(fill_random_)* fill_random_cuda();

}  // namespace tessera::detail
