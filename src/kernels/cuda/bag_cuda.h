// bag.h on CUDA tensors. Same contracts, but arguments were checked, and bad
// indices and offsets are left out and raised by a later call: see
// device_errors.h. Without CUDA's compiler these are compositions of ATen ops
// (no_cuda.cpp).
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/bag/bag.h"

namespace tessera::detail {

// bag_counts.
at::Tensor bag_counts_cuda(const BagInput& input);

// checked_bag_bounds for a table of `rows` rows. Waits for the device.
at::Tensor checked_bag_bounds_cuda(const BagInput& input, int64_t rows);

// embedding_bag_part.
at::Tensor pool_bags_cuda(
    const at::Tensor& weight,
    const BagPart& part,
    const BagInput& input,
    BagMode mode,
    at::ScalarType result);

// embedding_bag_max_part.
BagMax max_bags_cuda(
    const at::Tensor& weight,
    const BagPart& part,
    const BagInput& input,
    BagEmpty empty);

// embedding_bag_dense_backward, or with `sparse` embedding_bag_sparse_backward,
// which waits for the device once.
at::Tensor bags_backward_cuda(
    const BagGradient& bags, int64_t rows, bool sparse);

// embedding_bag_step_. Requires: columns side by side.
void step_rows_cuda(
    const at::Tensor& weight, const BagGradient& bags, double rate);

// embedding_bag_weights_backward.
at::Tensor bag_weights_backward_cuda(
    const at::Tensor& grad,
    const at::Tensor& weight,
    const BagPart& part,
    const BagInput& input);

}  // namespace tessera::detail
