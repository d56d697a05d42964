#include "kernels/cuda/row_update.h"

#include "kernels/cuda/bag_source.cuh"
#include "kernels/cuda/runs.cuh"
#include "kernels/cuda/sinks.cuh"

namespace tessera::detail::cuda {

namespace {

// T: of the gradients; W: of the table.
template <typename T, typename W, class Update>
cudaError_t launch(
    const Sorted& sorted,
    const BagTerms& terms,
    const UpdatedTable& table,
    const Update& update,
    void* scratch,
    cudaStream_t stream) {
  const UpdateSink<W, Update> sink{
      static_cast<W*>(table.data), table.stride, update};
  const bool words = allows_words<T>(terms.grad, terms.width, terms.width) &&
                     allows_words<W>(table.data, terms.width, table.stride);
  return with_source<T>(terms, [&](const auto& source) {
    return words ? run_sums<16 / sizeof(W), Sum<W>>(
                       sorted, terms.width, source, sink, scratch, stream)
                 : run_sums<1, Sum<W>>(
                       sorted, terms.width, source, sink, scratch, stream);
  });
}

}  // namespace

cudaError_t sgd_update(
    const Sorted& sorted,
    const BagTerms& terms,
    const UpdatedTable& table,
    double rate,
    void* scratch,
    cudaStream_t stream) {
  return with_scalar(table.dtype, [&](auto zero) {
    using W = decltype(zero);
    const SgdUpdate<W> update{static_cast<Sum<W>>(rate)};
    if constexpr (sizeof(W) == 2) {
      if (terms.dtype == Scalar::kFloat) {
        return launch<float, W>(sorted, terms, table, update, scratch, stream);
      }
    }
    return launch<W, W>(sorted, terms, table, update, scratch, stream);
  });
}

}  // namespace tessera::detail::cuda
