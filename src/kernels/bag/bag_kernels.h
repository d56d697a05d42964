// The kernels behind bag.h, by device. Same contracts, but the arguments were
// checked, and the columns of tables are side by side. Signatures are
// spelled only here: a function is declared by its type.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/bag/bag.h"

namespace tessera::detail {

// Bags, and the part of the table that they are looked up in.
struct BagLookup {
  const at::Tensor& weight;
  const BagPart& part;
  const BagIndices& input;
};

struct BagKernels {
  // bag_counts.
  using Counts = at::Tensor(const BagIndices& input);
  // checked_bag_bounds for a table of `rows` rows.
  using Bounds = at::Tensor(const BagIndices& input, int64_t rows);
  // embedding_bag_part.
  using Pool =
      at::Tensor(const BagLookup& bags, BagMode mode, at::ScalarType result);
  // embedding_bag_max_part.
  using Max = BagMax(const BagLookup& bags, BagEmpty empty);
  // embedding_bag_dense_backward, or with `sparse`
  // embedding_bag_sparse_backward.
  using Backward =
      at::Tensor(const BagGradient& bags, int64_t rows, bool sparse);
  // embedding_bag_step_.
  using Step =
      void(const at::Tensor& weight, const BagGradient& bags, double rate);
  // embedding_bag_weights_backward.
  using WeightsBackward =
      at::Tensor(const at::Tensor& grad, const BagLookup& bags);

  Counts* counts;
  Bounds* bounds;
  Pool* pool;
  Max* max;
  Backward* backward;
  Step* step;
  WeightsBackward* weights_backward;

  // Each row that is held here is read once, by vector instructions.
  static const BagKernels& cpu();
  // Bad indices and offsets are left out and raised by a later call: see
  // device_errors.h. A sparse gradient waits for the device once.
  // Without CUDA's compiler the composed ones.
  static const BagKernels& cuda();
  // Compositions of ATen ops, for devices without kernels of ours. The results
  // of the CPU's, but that sums are made in the device's order. Finding a bad
  // index waits for the device. `step` takes columns of any stride.
  static const BagKernels& composed();
};

// The composed bounds, which work on the host and serve the CPU, too.
BagKernels::Bounds bag_bounds_composed;

}  // namespace tessera::detail
