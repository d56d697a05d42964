// from_local: the global layout worked out from the shards that live here.
#pragma once

#include "tessera/dtensor.h"

namespace tessera::detail {

// `shared`: `locals` is one tensor, which every rank holds.
at::Tensor from_local(
    at::TensorList locals,
    bool shared,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FromLocalOptions& options);

}  // namespace tessera::detail
