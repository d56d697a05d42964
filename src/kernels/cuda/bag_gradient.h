// Gradients of bags' rows.
#pragma once

#include "kernels/cuda/bag.h"
#include "kernels/cuda/row_gradient.h"

namespace tessera::detail::cuda {

// What each entry of a bag brings to the gradient of its row.
struct BagTerms {
  Scalar dtype;
  const void* grad;  // [bags, width] of dtype
  int64_t width;
  // One at most of these is set.
  const void* weights;    // of each entry, of dtype
  const int64_t* counts;  // of each bag: what a mean is divided by
  const int32_t* argmax;  // [bags, width]: the places that have the maxima
  // The bag of each entry, where weights or argmax are set: sorted entries are
  // then named by their places. Else by their bags, and this is nullptr.
  const int32_t* bags;
};

// Where the entries of bags are written.
struct BagEntryOut {
  SortMemory sort;
  int32_t* bags;    // of each entry; if nullptr, in place of its own place
  int64_t* counts;  // the number of each bag's entries; or nullptr
};

// Writes the entries of bags as lookup_entries does. Padding and entries behind
// the last bag are absent and not counted.
cudaError_t bag_entries(
    const Bags& bags,
    const Part& part,
    const BagEntryOut& entries,
    const Launch& launch);

// The gradient of the rows.
cudaError_t bag_gradient(
    const SortedRun& run, const BagTerms& terms, const GradientOut& out);

// What per_sample_weights get.
struct WeightsGradient {
  const void* grad;  // [bags, width] of the table's dtype
  void* out;         // [entries]
};

// out[p] = grad of p's bag . table row of entry p, 0 where the part does not
// hold it.
cudaError_t bag_weights_gradient(
    const BagTable& table,
    const Bags& bags,
    const WeightsGradient& weights,
    const Launch& launch);

}  // namespace tessera::detail::cuda
