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

template <int kStep, typename T>
cudaError_t launch(
    const Sorted& sorted,
    const void* grad,
    int64_t width,
    const GradientOut& out,
    void* scratch,
    cudaStream_t stream) {
  return run_sums<kStep, Sum<T>>(
      sorted,
      width,
      RowSource<T>{static_cast<const T*>(grad), width},
      GradientSink<T>{
          static_cast<T*>(out.data), width, out.numbers, out.mean_of_entries},
      scratch,
      stream);
}

}  // namespace

cudaError_t lookup_gradient(
    const Sorted& sorted,
    Scalar dtype,
    const void* grad,
    int64_t width,
    const GradientOut& out,
    void* scratch,
    cudaStream_t stream) {
  return with_scalar(dtype, [&](auto zero) {
    using T = decltype(zero);
    return allows_words<T>(grad, width, width) &&
                   allows_words<T>(out.data, width, width)
               ? launch<16 / sizeof(T), T>(
                     sorted, grad, width, out, scratch, stream)
               : launch<1, T>(sorted, grad, width, out, scratch, stream);
  });
}

}  // namespace tessera::detail::cuda
