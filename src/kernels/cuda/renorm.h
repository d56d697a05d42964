// Rows scaled down to a norm, in place.
#pragma once

#include "kernels/cuda/memory.h"

namespace tessera::detail::cuda {

struct RenormTable {
  void* data;
  int64_t stride;  // elements from one row to the next
  int64_t width;
  Scalar dtype;
  Part part;
};

// Each row of `rows` (of the whole table, distinct) that the part holds is
// multiplied by max_norm / (norm + 1e-7) if its norm exceeds max_norm. Norms
// are added up in double.
cudaError_t renorm_rows(
    const RenormTable& table,
    const int64_t* rows,
    int64_t count,
    double max_norm,
    double norm_type,
    cudaStream_t);

}  // namespace tessera::detail::cuda
