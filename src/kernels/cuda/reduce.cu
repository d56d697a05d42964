#include "kernels/cuda/reduce.h"

#include <algorithm>

#include "kernels/cuda/lanes.cuh"

namespace tessera::detail::cuda {

namespace {

// NaN is the least and the greatest, as in ATen.
template <Reduction kReduction, typename S>
__device__ S reduced(S a, S b) {
  if constexpr (kReduction == Reduction::kProduct) {
    return a * b;
  } else if constexpr (kReduction == Reduction::kMin) {
    return a != a || !(b < a || b != b) ? a : b;
  } else if constexpr (kReduction == Reduction::kMax) {
    return a != a || !(a < b || b != b) ? a : b;
  } else {
    return a + b;
  }
}

template <int kStep, typename T, Reduction kReduction>
__global__ void __launch_bounds__(kThreads) reduce_kernel(const Terms terms) {
  using S = Sum<T>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x * kStep;
  int64_t i =
      (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kStep;
  for (; i < terms.count; i += stride) {
    S total[kStep];
    load<kStep>(static_cast<const T*>(terms.terms[0]) + i, total);
    for (int t = 1; t < terms.term_count; ++t) {
      S term[kStep];
      load<kStep>(static_cast<const T*>(terms.terms[t]) + i, term);
#pragma unroll
      for (int k = 0; k < kStep; ++k) {
        total[k] = reduced<kReduction>(total[k], term[k]);
      }
    }
    if constexpr (kReduction == Reduction::kAverage) {
#pragma unroll
      for (int k = 0; k < kStep; ++k) {
        total[k] /= static_cast<S>(terms.term_count);
      }
    }
    for (int o = 0; o < terms.out_count; ++o) {
      store<kStep>(static_cast<T*>(terms.outs[o]) + i, total);
    }
  }
}

template <typename T, Reduction kReduction>
cudaError_t launch(const Terms& terms, cudaStream_t stream) {
  constexpr int kWords = 16 / sizeof(T);
  bool words = true;
  for (int t = 0; t < terms.term_count; ++t) {
    words &= allows_words<T>(terms.terms[t], terms.count, terms.count);
  }
  for (int o = 0; o < terms.out_count; ++o) {
    words &= allows_words<T>(terms.outs[o], terms.count, terms.count);
  }
  const int64_t groups = terms.count / (words ? kWords : 1);
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>((groups + kThreads - 1) / kThreads, 1 << 16));
  if (words) {
    reduce_kernel<kWords, T, kReduction>
        <<<blocks, kThreads, 0, stream>>>(terms);
  } else {
    reduce_kernel<1, T, kReduction><<<blocks, kThreads, 0, stream>>>(terms);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t reduce_terms(
    const Terms& terms,
    Scalar dtype,
    Reduction reduction,
    cudaStream_t stream) {
  return with_scalar(dtype, [&](auto zero) {
    using T = decltype(zero);
    switch (reduction) {
      case Reduction::kSum:
        return launch<T, Reduction::kSum>(terms, stream);
      case Reduction::kAverage:
        return launch<T, Reduction::kAverage>(terms, stream);
      case Reduction::kProduct:
        return launch<T, Reduction::kProduct>(terms, stream);
      case Reduction::kMin:
        return launch<T, Reduction::kMin>(terms, stream);
      case Reduction::kMax:
        return launch<T, Reduction::kMax>(terms, stream);
    }
    return cudaErrorInvalidValue;
  });
}

}  // namespace tessera::detail::cuda
