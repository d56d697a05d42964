// Carrying out a redistribution plan on shards.
#pragma once

#include "comm/collectives.h"
#include "plan/redistribute_plan.h"

namespace tessera::detail {

// Whether a slice may share memory with the shard it is taken from.
enum class Slices : uint8_t {
  Alias,       // as it comes, strided
  Contiguous,  // where it is contiguous: some kernels do not look at strides
  Copy,
};

// The strides of a tensor of these `sizes` and `strides` whose shards have gone
// through the plan's steps: what run_steps leaves of the order in memory.
Sizes strides_after(
    const DeviceMesh& mesh,
    SizesRef sizes,
    SizesRef strides,
    const RedistributePlan& plan,
    Slices slices);

// The shards of a tensor that was laid out as `from` after the plan's steps: of
// the dtype that shard_dtype_in says. Communicates as the steps say. The result
// of a plan without steps is `shards`.
Shards run_steps(
    const Spec& from,
    const RedistributePlan& plan,
    Shards shards,
    Slices slices);

}  // namespace tessera::detail
