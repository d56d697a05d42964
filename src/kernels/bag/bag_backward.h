// Gradients of bags on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/bag/bag.h"

namespace tessera::detail {

// embedding_bag_dense_backward, or with `sparse` embedding_bag_sparse_backward,
// on the CPU. Requires: arguments that bag.cpp has checked.
at::Tensor bags_backward_cpu(
    const BagGradient& bags, int64_t rows, bool sparse);

// embedding_bag_step_ on the CPU, by the gradient of each row, which is rounded
// once. Requires: arguments that bag.cpp has checked, columns side by side.
void step_by_row_gradients(
    const at::Tensor& weight, const BagGradient& bags, double rate);

// embedding_bag_weights_backward on the CPU. Requires: arguments that bag.cpp
// has checked.
at::Tensor bag_weights_backward_cpu(
    const at::Tensor& grad,
    const at::Tensor& weight,
    const BagPart& part,
    const BagInput& input);

}  // namespace tessera::detail
