// The c10d group along a dimension of a mesh, for collectives of one's own.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>

#include "tessera/export.h"
#include "tessera/mesh.h"

namespace c10d {
class Backend;
}

namespace tessera {

// A backend for the group of this process's rank along `dim`: NCCL on a mesh of
// "cuda" whose ranks each have a GPU (the current one), otherwise Gloo. Include
// c10d's Backend.hpp to use it. Its connections are its own: calls may be
// issued in any order beside ops on distributed tensors. Connects at the first
// call for a group, which every rank of it must make and which, for Gloo,
// returns when all are connected. Throws c10::Error in a simulated world, which
// has none, and on a rank outside the mesh; c10::NotImplementedError where the
// library was built without Gloo.
TESSERA_API c10::intrusive_ptr<c10d::Backend> get_group(
    const DeviceMesh& mesh, int64_t dim = 0);

}  // namespace tessera
