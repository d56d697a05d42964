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

struct RenormRows {
  const int64_t* rows;  // of the whole table, distinct
  int64_t count;
  double max_norm;
  double norm_type;
};

// Each of the rows that the part holds is multiplied by
// max_norm / (norm + 1e-7) if its norm exceeds max_norm. Norms are added up in
// double.
cudaError_t renorm_rows(
    const RenormTable& table, const RenormRows& rows, cudaStream_t);

}  // namespace tessera::detail::cuda
