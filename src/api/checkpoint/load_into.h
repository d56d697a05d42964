// Loads into tensors that are there.
#pragma once

#include <string>

#include "api/checkpoint/source.h"

namespace tessera::detail {

// Fills the shards that live here. Does not communicate. Throws as load does;
// what the tensors hold is then undefined.
void load_into(const Source& source, const TensorMap& tensors);

}  // namespace tessera::detail
