// Kernels for the distributed key that are written by hand, because they do no
// local work (detach, squeeze_) or need more than rows can say (random
// numbers).
#pragma once

#include <ATen/core/operator_name.h>
#include <torch/library.h>

namespace tessera::detail {

void register_handwritten(torch::Library& aten);
// Which data a tensor may be given; also for the autograd key.
void register_set_data(torch::Library& aten);

// Ops whose composite explicit kernel only calls other ops, one tensor at a
// time: it serves distributed tensors as it is.
bool leaves_to_composite(const c10::OperatorName& name);

}  // namespace tessera::detail
