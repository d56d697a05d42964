// Lookups in a part of a table, in one pass over the indices.
#pragma once

#include "kernels/cuda/memory.h"

namespace tessera::detail::cuda {

struct Lookup {
  const void* table;     // the part's rows, each of row_bytes side by side
  int64_t table_stride;  // bytes from one row to the next
  int64_t row_bytes;
  Part part;
  Integers indices;
  void* out;  // [indices.count, row_bytes]
};

// out[i] is the row of indices[i] where the part holds it, zeros elsewhere. An
// index outside the table is reported and gives zeros.
cudaError_t lookup(const Lookup& args, const Report& report, cudaStream_t);

}  // namespace tessera::detail::cuda
