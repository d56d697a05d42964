// The search for the cheapest chain of steps on a mesh of several dimensions.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/redistribute_plan.h"

namespace tessera::detail {

// The one step that takes a mesh dimension from one placement to another;
// nullopt where there is none.
std::optional<Step::Kind> single_step(
    const Placement& from, const Placement& to);

// Whether mesh dimension `m` may change to `to` while the others stay as
// they are: no later one shards a tensor dimension that `m` starts or stops to
// shard.
bool free_to_change(PlacementsRef placements, size_t m, const Placement& to);

// The cheapest chain of steps from one layout to another. A state of the search
// is a list of placements; a mesh dimension may take Replicate, its first and
// its last placement, and a shard of any tensor dimension that is sharded first
// or last. Those that are the same in both and block no other are left as they
// are. Pending reductions are carried out in the order of the mesh dimensions.
// Requires: mesh dimensions of size 1 are Replicate in both; `to` holds no
// MaskPartial but those of `from`.
RedistributePlan search_steps(
    const DeviceMesh& mesh,
    SizesRef sizes,
    int64_t element_size,
    PlacementsRef from,
    PlacementsRef to);

}  // namespace tessera::detail
