// Moves the rows of ragged shards as planned (ragged.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dispatch/ragged.h"

namespace tessera::detail {

// Carries the steps out. Differentiable; the results are contiguous.
// Communicates, and so does the backward pass.
std::vector<at::Tensor> move_rows(
    const DeviceMesh& mesh, const RowSteps& steps, at::TensorList locals);

}  // namespace tessera::detail
