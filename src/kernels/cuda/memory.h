// What the kernels' callers hand over: plain memory of one device. No header of
// torch is needed here or in any .cu file.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/report.h"

namespace tessera::detail::cuda {

// Where kernels run, and where they report bad indices.
struct Launch {
  Report report;
  cudaStream_t stream;
};

// The types that are added up; half kinds are added in float.
enum class Scalar { kFloat, kDouble, kHalf, kBFloat16 };

// A contiguous list of int32 or int64.
struct Integers {
  const void* data;
  int64_t count;
  bool wide;  // int64

#ifdef __CUDACC__
  __device__ int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i]
                : static_cast<const int32_t*>(data)[i];
  }
#endif
};

// Rows [first, first + rows) of a table of `total` rows.
struct Part {
  int64_t first;
  int64_t rows;
  int64_t total;
};

#ifdef __CUDACC__
// The row of the part that `index` names, or -1: of another part, or outside
// the table, which is reported. `place` is where it stands among the indices.
__device__ inline int64_t row_of(
    const Part& part,
    int64_t index,
    int64_t place,
    const Report& report,
    BadInput kind) {
  if (static_cast<uint64_t>(index) >= static_cast<uint64_t>(part.total)) {
    report_bad(report, place, kind, index, part.total);
    return -1;
  }
  const int64_t row = index - part.first;
  return static_cast<uint64_t>(row) < static_cast<uint64_t>(part.rows) ? row
                                                                       : -1;
}
#endif

}  // namespace tessera::detail::cuda
