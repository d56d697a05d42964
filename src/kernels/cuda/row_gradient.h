// Gradients of the rows of a part: what each of its entries brings, added up.
#pragma once

#include "kernels/cuda/runs.h"
#include "kernels/cuda/sorted.h"

namespace tessera::detail::cuda {

// Where gradients of rows are written, [rows, width] side by side.
struct GradientOut {
  void* data;
  // number_runs', for a gradient that stores only the touched rows; nullptr
  // for one of all rows, which the caller has filled with zeros.
  const uint32_t* numbers;
  bool mean_of_entries;  // divide by the number of a row's entries
};

// The row of `grad` that belongs to place p is grad + p * width.
// `scratch`: run_scratch(sorted.count, width, 4, or 8 for double).
cudaError_t lookup_gradient(
    const Sorted& sorted,
    Scalar dtype,
    const void* grad,
    int64_t width,
    const GradientOut& out,
    void* scratch,
    cudaStream_t);

}  // namespace tessera::detail::cuda
