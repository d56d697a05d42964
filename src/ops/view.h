// aten::view by hand: boxing its list of sizes costs more than the view itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

namespace tessera::detail {

// What the boxed kernel gives for the same arguments.
at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size);

}  // namespace tessera::detail
