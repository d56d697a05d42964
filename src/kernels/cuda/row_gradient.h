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

// Entries whose rows are added up.
struct SortedRun {
  const Sorted& sorted;
  void* scratch;  // run_scratch(sorted.count, width, 4, or 8 for double)
  cudaStream_t stream;
};

// The row of `grad` that belongs to place p is grad + p * width.
struct RowTerms {
  Scalar dtype;
  const void* grad;
  int64_t width;
};

cudaError_t lookup_gradient(
    const SortedRun& run, const RowTerms& terms, const GradientOut& out);

}  // namespace tessera::detail::cuda
