// Gradient descent on the rows of bags, on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/bag.h"

namespace tessera::detail {

// embedding_bag_step_ on the CPU. Requires: arguments that bag.cpp has checked,
// columns side by side.
void step_rows_cpu(
    const at::Tensor& weight,
    const at::Tensor& grad,
    const BagPart& part,
    const BagInput& input,
    BagMode mode,
    const std::optional<at::Tensor>& winners,
    double rate);

}  // namespace tessera::detail
