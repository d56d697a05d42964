// Sums and means of bags on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/bag/bag.h"

namespace tessera::detail {

// embedding_bag_part on the CPU. Requires: arguments that bag.cpp has checked;
// `out`, [bags, d], contiguous, of the table's dtype or what that is added up
// in. Throws as embedding_bag_part for indices and offsets.
at::Tensor pool_bags_cpu(
    const at::Tensor& weight,
    const BagPart& part,
    const BagInput& input,
    BagMode mode,
    at::ScalarType result);

}  // namespace tessera::detail
