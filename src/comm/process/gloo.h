// A Gloo backend of c10d, for collectives of the user's own in the groups of a
// mesh. Tessera's own messages do not use it.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/process/group.h"

namespace tessera::detail {

// Connects to the other ranks of the group over Gloo; each of them must call
// this, and it returns when all are connected. Throws whatever Gloo or the
// store throws, and c10::NotImplementedError where the library was built
// without Gloo.
c10::intrusive_ptr<c10d::Backend> make_gloo(const GroupRequest& request);

}  // namespace tessera::detail
