// The collectives of a world whose ranks all live in this process: computed
// directly on the shards, in lock-step, with ATen operations only, so that they
// work on any device and for meta tensors.
#pragma once

#include <memory>

#include "comm/collectives.h"

namespace tessera::detail {

std::unique_ptr<Collectives> make_simulated_collectives();

}  // namespace tessera::detail
