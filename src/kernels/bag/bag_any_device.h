// Bags as compositions of ATen's ops, for devices without kernels of our own.
// The same results as the CPU's kernels, but that a NaN wins any maximum, and
// that sums are made in the device's order.
// All require arguments that bag.cpp has checked, and throw its
// c10::IndexError; asking whether to throw waits for the device.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/bag/bag.h"

namespace tessera::detail {

// bag_counts.
at::Tensor compose_bag_counts(const BagInput& input);

// checked_bag_bounds for a table of `rows` rows.
at::Tensor compose_bag_bounds(const BagInput& input, int64_t rows);

// embedding_bag_part.
at::Tensor compose_bags(
    const at::Tensor& weight,
    const BagPart& part,
    const BagInput& input,
    BagMode mode,
    at::ScalarType result);

// embedding_bag_max_part.
BagMax compose_bag_max(
    const at::Tensor& weight,
    const BagPart& part,
    const BagInput& input,
    BagEmpty empty);

// embedding_bag_dense_backward, or with `sparse` embedding_bag_sparse_backward.
at::Tensor compose_bags_backward(
    const BagGradient& bags, int64_t rows, bool sparse);

// embedding_bag_step_.
void compose_step(
    const at::Tensor& weight, const BagGradient& bags, double rate);

// embedding_bag_weights_backward.
at::Tensor compose_bag_weights_backward(
    const at::Tensor& grad,
    const at::Tensor& weight,
    const BagPart& part,
    const BagInput& input);

}  // namespace tessera::detail
