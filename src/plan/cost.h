// The one cost function: what a step is thought to take, in microseconds. The
// redistribution planner and the choice of a row both minimise it.
#pragma once

#include <cstdint>

#include "plan/redistribute_plan.h"

namespace tessera::detail {

// A model of time, not a measurement: a fixed start for each step, and the
// bytes that one rank sends or copies. `local_bytes`: the size of the largest
// shard before the step; `group`: the number of ranks along the step's mesh
// dimension. A group of one costs nothing.
double step_cost(Step::Kind kind, int64_t local_bytes, int64_t group);

// The size of the largest shard of a tensor: each mesh dimension in turn leaves
// ceil(n / ranks) of the dimension it shards. Placements must be normalised.
int64_t largest_shard_bytes(
    const DeviceMesh& mesh,
    SizesRef sizes,
    int64_t element_size,
    PlacementsRef placements);

}  // namespace tessera::detail
