// Writes into copied views that need no copy.
#pragma once

#include <ATen/core/stack.h>

#include "dispatch/op_info.h"

namespace tessera::detail {

// Carries out a call that writes into a copied view on the shards of its base,
// if it can: an op on elements one by one whose other arguments every rank has,
// or a copy_. Leaves the call's results in the stack then. Communicates only
// for a copy_ of a sharded value.
bool write_at_owners(const OpInfo& op, torch::jit::Stack& stack);

}  // namespace tessera::detail
