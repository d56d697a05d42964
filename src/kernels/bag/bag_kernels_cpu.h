// The parts of BagKernels::cpu(), each in a file of its own.
#pragma once

#include "kernels/bag/bag_kernels.h"

namespace tessera::detail {

BagKernels::Pool pool_bags_cpu;
BagKernels::Max max_bags_cpu;
BagKernels::Backward bags_backward_cpu;
BagKernels::Step step_rows_cpu;
BagKernels::WeightsBackward bag_weights_backward_cpu;

// Also a step, by the gradient of each row, which is rounded once.
BagKernels::Step step_by_row_gradients;

}  // namespace tessera::detail
