// The parts of lookup_kernels_cpu(), in embedding_forward_cpu.cpp and
// embedding_backward_cpu.cpp.
#pragma once

#include "kernels/lookup/lookup_kernels.h"

namespace tessera::detail {

at::Tensor lookup_forward_cpu(const at::Tensor& weight, const HeldRows& held);

}  // namespace tessera::detail
