#include "kernels/cuda/row_update.h"

#include "kernels/cuda/bag_source.cuh"
#include "kernels/cuda/runs.cuh"
#include "kernels/cuda/sinks.cuh"

namespace tessera::detail::cuda {

namespace {

// T: of the gradients; W: of the table.
template <typename T, typename W, class Update>
cudaError_t update_rows(
    const SortedRun& run,
    const BagTerms& terms,
    const UpdatedTable& table,
    const Update& update) {
  const UpdateSink<W, Update> sink{
      static_cast<W*>(table.data), table.stride, update};
  const bool words = allows_words<T>(terms.grad, terms.width, terms.width) &&
                     allows_words<W>(table.data, terms.width, table.stride);
  return with_source<T>(terms, [&](const auto& source) {
    return sum_rows<W>(words, run, terms.width, source, sink);
  });
}

}  // namespace

cudaError_t sgd_update(
    const SortedRun& run,
    const BagTerms& terms,
    const UpdatedTable& table,
    double rate) {
  return with_scalar(table.dtype, [&](auto zero) {
    using W = decltype(zero);
    const SgdUpdate<W> update{static_cast<Sum<W>>(rate)};
    if constexpr (sizeof(W) == 2) {
      if (terms.dtype == Scalar::kFloat) {
        return update_rows<float, W>(run, terms, table, update);
      }
    }
    return update_rows<W, W>(run, terms, table, update);
  });
}

}  // namespace tessera::detail::cuda
