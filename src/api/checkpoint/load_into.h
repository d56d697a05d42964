// Loads into tensors that are there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api/checkpoint/source.h"

namespace tessera::detail {

// The ranks of this machine that load the same tensors at the same time, and
// agree on errors afterwards.
struct Together {
  std::vector<int64_t> ranks;
  // Those that live here.
  std::vector<int64_t> here;
};

// Fills the shards that live here. Does not communicate. Every byte that is
// read is verified, by one of those that load `together` where it is given.
// Throws as load does; what the tensors hold is then undefined.
void load_into(
    const Source& source,
    const TensorMap& tensors,
    const Together* together = nullptr);

}  // namespace tessera::detail
