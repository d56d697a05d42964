// Putting the results of ranks together, without the code under test.
#pragma once

#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "tessera/mesh.h"
#include "tessera/placement.h"

namespace tessera::testing {

// The tensors of an argument or a result: one, a list's, or none. Undefined
// where an optional element of a list is not given.
std::vector<at::Tensor> tensors_in(const c10::IValue& value);

// How result `index` of the ranks' calls, joined as `placement` says over a 1-d
// mesh, differs from `expected`. Empty if it does not. Shards must have the
// sizes that the placement gives them.
std::string rejoined_difference(
    const std::vector<torch::jit::Stack>& results,
    size_t index,
    const c10::IValue& expected,
    const Placement& placement,
    const DeviceMesh& mesh);

}  // namespace tessera::testing
