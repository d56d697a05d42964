// Gradient descent on the rows of bags, on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/bag/bag.h"

namespace tessera::detail {

// embedding_bag_step_ on the CPU. Requires: arguments that bag.cpp has checked,
// columns side by side.
void step_rows_cpu(
    const at::Tensor& weight, const BagGradient& bags, double rate);

}  // namespace tessera::detail
