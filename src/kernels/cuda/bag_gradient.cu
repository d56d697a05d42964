#include "kernels/cuda/bag_gradient.h"

#include "kernels/cuda/bag_source.cuh"
#include "kernels/cuda/runs.cuh"
#include "kernels/cuda/sinks.cuh"

namespace tessera::detail::cuda {

cudaError_t bag_gradient(
    const SortedRun& run, const BagTerms& terms, const GradientOut& out) {
  const int64_t width = terms.width;
  return with_scalar(terms.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool words = allows_words<T>(terms.grad, width, width) &&
                       allows_words<T>(out.data, width, width);
    const GradientSink<T> sink{
        static_cast<T*>(out.data), width, out.numbers, out.mean_of_entries};
    return with_source<T>(terms, [&](const auto& source) {
      return sum_rows<T>(words, run, width, source, sink);
    });
  });
}

}  // namespace tessera::detail::cuda
