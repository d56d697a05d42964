// Several arrays reduced to one, element by element.
#pragma once

#include "kernels/cuda/memory.h"

namespace tessera::detail::cuda {

inline constexpr int kMostTerms = 64;

enum class Reduction { kSum, kAverage, kProduct, kMin, kMax };

// Arrays of `count` elements: `outs` all get the same.
struct Terms {
  const void* terms[kMostTerms];
  void* outs[kMostTerms];
  int term_count;
  int out_count;
  int64_t count;
};

// Takes the terms in order; half kinds are summed in float.
cudaError_t reduce_terms(
    const Terms& terms, Scalar dtype, Reduction reduction, cudaStream_t);

}  // namespace tessera::detail::cuda
