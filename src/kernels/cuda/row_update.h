// Updates of a table's rows by the gradients of bags, in the pass that adds the
// gradients up: no gradient is stored.
#pragma once

#include "kernels/cuda/bag_gradient.h"

namespace tessera::detail::cuda {

// The rows that are updated, each `width` columns side by side.
struct UpdatedTable {
  void* data;
  int64_t stride;  // elements from one row to the next
  Scalar dtype;    // that of the gradients, or its half kind
};

// table[row] -= rate * gradient of the row, for each row with an entry.
cudaError_t sgd_update(
    const SortedRun& run,
    const BagTerms& terms,
    const UpdatedTable& table,
    double rate);

}  // namespace tessera::detail::cuda
