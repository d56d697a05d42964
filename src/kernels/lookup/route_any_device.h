// route.h as a composition of ATen ops, for devices without a kernel of ours.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "kernels/lookup/route.h"

namespace tessera::detail {

// route_rows. Same contract, but `indices` and `bounds` were checked. Waits for
// the device.
Route route_rows_any_device(const at::Tensor& indices, c10::IntArrayRef bounds);

}  // namespace tessera::detail
