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

// Writes the entries of bags as lookup_entries does, the bag of each to
// `entry_bags` (if nullptr, in place of its own place) and, unless nullptr, the
// number of each bag's entries to `counts`. Padding and entries behind the last
// bag are absent and not counted.
cudaError_t bag_entries(
    const Bags& bags,
    const Part& part,
    const SortMemory& memory,
    int32_t* entry_bags,
    int64_t* counts,
    const Report& report,
    cudaStream_t);

// The gradient of the rows. `scratch` as for lookup_gradient.
cudaError_t bag_gradient(
    const Sorted& sorted,
    const BagTerms& terms,
    const GradientOut& out,
    void* scratch,
    cudaStream_t);

// out[p] = grad of p's bag . table row of entry p, 0 where the part does not
// hold it.
cudaError_t bag_weights_gradient(
    const BagTable& table,
    const Bags& bags,
    const void* grad,
    void* out,
    const Report& report,
    cudaStream_t);

}  // namespace tessera::detail::cuda
