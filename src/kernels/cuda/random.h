// Random numbers of a shard's elements.
#pragma once

#include "kernels/cuda/memory.h"
#include "kernels/random/random_draw.h"

namespace tessera::detail::cuda {

inline constexpr int kRandomDims = 12;

// What a shard holds of each dimension: [begin, begin + size) of `whole`.
struct RandomBox {
  int dims;
  int64_t begin[kRandomDims];
  int64_t size[kRandomDims];
  int64_t whole[kRandomDims];
};

struct RandomFill {
  RandomDraw draw;
  RandomStream stream;
  RandomBox box;
  int64_t count;
  Scalar dtype;
  void* out;
};

// out[i], of `count` elements in row-major order, rounded to `dtype`.
cudaError_t fill_random(const RandomFill& fill, cudaStream_t);

}  // namespace tessera::detail::cuda
