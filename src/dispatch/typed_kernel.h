// Kernels with the op's own C++ signature, for ops that take tensors and
// numbers and return one tensor: pointwise ops and products, which are called
// most. A call whose plan is direct goes straight to the op on shards. All
// others are boxed and go the common path.
#pragma once

#include <torch/library.h>

#include <optional>

namespace tessera::detail {

// Nothing if the op has no rule, or another signature.
std::optional<torch::CppFunction> typed_kernel(const c10::OperatorHandle& op);

}  // namespace tessera::detail
