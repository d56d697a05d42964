// route_rows on CUDA tensors. Waits for the device once, for the counts, and
// raises bad indices there. Without CUDA's compiler it is a composition of ATen
// ops (no_cuda.cpp).
#pragma once

#include "kernels/lookup/route.h"

namespace tessera::detail {

Route route_rows_cuda(const at::Tensor& indices, c10::IntArrayRef bounds);

}  // namespace tessera::detail
