#include "kernels/cuda/bag_gradient.h"

#include "kernels/cuda/bag_source.cuh"
#include "kernels/cuda/runs.cuh"
#include "kernels/cuda/sinks.cuh"

namespace tessera::detail::cuda {

cudaError_t bag_gradient(
    const SortedRun& run, const BagTerms& terms, const GradientOut& out) {
  return with_scalar(terms.dtype, [&](auto zero) {
    using T = decltype(zero);
    return with_source<T>(terms, [&](const auto& source) {
      return write_gradient<T>(
          run, {terms.dtype, terms.grad, terms.width}, source, out);
    });
  });
}

}  // namespace tessera::detail::cuda
