// The parts of LookupKernels::cpu() that have files of their own.
#pragma once

#include "kernels/lookup/lookup_kernels.h"

namespace tessera::detail {

at::Tensor lookup_forward_cpu(const at::Tensor& weight, const HeldRows& held);
decltype(route_rows) route_rows_cpu;

}  // namespace tessera::detail
