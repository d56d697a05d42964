// The parts of LookupKernels::cuda() that have files of their own.
#pragma once

#include "kernels/lookup/route.h"

namespace tessera::detail {

decltype(route_rows) route_rows_cuda;
decltype(start_route) start_route_cuda;

}  // namespace tessera::detail
