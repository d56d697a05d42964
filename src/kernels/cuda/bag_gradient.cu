#include "kernels/cuda/bag_gradient.h"

#include "kernels/cuda/bag_source.cuh"
#include "kernels/cuda/runs.cuh"
#include "kernels/cuda/sinks.cuh"

namespace tessera::detail::cuda {

namespace {

template <int kStep, typename T>
cudaError_t launch(
    const Sorted& sorted,
    const BagTerms& terms,
    const GradientOut& out,
    void* scratch,
    cudaStream_t stream) {
  const GradientSink<T> sink{
      static_cast<T*>(out.data), terms.width, out.numbers, out.mean_of_entries};
  return with_source<T>(terms, [&](const auto& source) {
    return run_sums<kStep, Sum<T>>(
        sorted, terms.width, source, sink, scratch, stream);
  });
}

}  // namespace

cudaError_t bag_gradient(
    const Sorted& sorted,
    const BagTerms& terms,
    const GradientOut& out,
    void* scratch,
    cudaStream_t stream) {
  return with_scalar(terms.dtype, [&](auto zero) {
    using T = decltype(zero);
    return allows_words<T>(terms.grad, terms.width, terms.width) &&
                   allows_words<T>(out.data, terms.width, terms.width)
               ? launch<16 / sizeof(T), T>(sorted, terms, out, scratch, stream)
               : launch<1, T>(sorted, terms, out, scratch, stream);
  });
}

}  // namespace tessera::detail::cuda
