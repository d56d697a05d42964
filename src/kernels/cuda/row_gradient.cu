#include "kernels/cuda/row_gradient.h"

#include "kernels/cuda/runs.cuh"
#include "kernels/cuda/sinks.cuh"

namespace tessera::detail::cuda {

namespace {

template <typename T>
struct RowSource {
  const T* grad;
  int64_t width;

  template <int kStep>
  __device__ Raw<T, kStep> fetch(uint32_t place, int column) const {
    return cuda::fetch<kStep>(grad + place * width + column);
  }

  template <int kStep, typename S>
  __device__ void widen(const Raw<T, kStep>& raw, S (&terms)[kStep]) const {
    cuda::widen(raw, terms);
  }
};

}  // namespace

cudaError_t lookup_gradient(
    const SortedRun& run, const RowTerms& terms, const GradientOut& out) {
  return with_scalar(terms.dtype, [&](auto zero) {
    using T = decltype(zero);
    return write_gradient<T>(
        run,
        terms,
        RowSource<T>{static_cast<const T*>(terms.grad), terms.width},
        out);
  });
}

}  // namespace tessera::detail::cuda
