// Maxima of bags on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/bag/bag.h"

namespace tessera::detail {

// embedding_bag_max_part on the CPU. Requires: arguments that bag.cpp has
// checked. Throws as embedding_bag_max_part for indices and offsets.
BagMax max_bags_cpu(
    const at::Tensor& weight,
    const BagPart& part,
    const BagInput& input,
    BagEmpty empty);

}  // namespace tessera::detail
