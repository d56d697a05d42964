// Rows scaled down to a norm, in place.
#pragma once

#include "kernels/cuda/memory.h"
#include "kernels/cuda/sorted.h"

namespace tessera::detail::cuda {

struct RenormTable {
  void* data;
  int64_t stride;  // elements from one row to the next
  int64_t width;
  Scalar dtype;
  double max_norm;
  double norm_type;
};

// Each row that the entries name is multiplied by max_norm / (norm + 1e-7) if
// its norm exceeds max_norm. Norms are added up in double.
cudaError_t renorm_rows(
    const RenormTable& table, const Sorted& rows, cudaStream_t);

}  // namespace tessera::detail::cuda
