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

// The group of this process's rank along `dim`; include c10d's Backend.hpp to
// use it. Tessera sends its own messages over the same connection: every rank
// of the group must issue its calls and the ops on distributed tensors in one
// order. Communicates at the first use of the group. Throws c10::Error in a
// simulated world, which has none, and on a rank outside the mesh.
TESSERA_API c10::intrusive_ptr<c10d::Backend> get_group(
    const DeviceMesh& mesh, int64_t dim = 0);

}  // namespace tessera
