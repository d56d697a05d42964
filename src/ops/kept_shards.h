// Placements for ops that need some dimensions whole.
#pragma once

#include <cstdint>

#include "tessera/placement.h"

namespace tessera::detail {

// The placements, with the shards of dimensions of which `keep(dim)` is true,
// and replicas otherwise.
template <typename Keep>
Placements kept_shards(PlacementsRef placements, const Keep& keep) {
  Placements kept;
  for (const auto& placement : placements) {
    const bool stays = placement.is_shard() && keep(placement.dim());
    kept.push_back(stays ? placement : Placement(Replicate()));
  }
  return kept;
}

}  // namespace tessera::detail
