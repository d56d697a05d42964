// Global shapes that each rank works out for itself from its own shard, and
// that the ranks never compare. A fingerprint of them travels with every
// message of the same thread on the same mesh: ranks that have assumed
// different shapes learn of it with the next collective, at no cost.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>

#include "tessera/mesh.h"

namespace tessera::detail {

// This thread takes a tensor on `mesh` to have this shape. Every rank of the
// mesh must do so in the same order.
void assume_shape(const DeviceMesh& mesh, c10::ArrayRef<int64_t> shape);

// The fingerprint of what this thread has assumed on `mesh`; 0: nothing.
uint16_t assumed_shapes(const DeviceMesh& mesh);

}  // namespace tessera::detail
