// Carrying out a redistribution plan on shards.
#pragma once

#include "comm/collectives.h"
#include "plan/redistribute_plan.h"

namespace tessera::detail {

// Whether a slice may share memory with the shard it is cut from.
enum class Slices : uint8_t {
  Alias,       // as it comes, strided
  Contiguous,  // where it is contiguous: some kernels do not look at strides
  Copy,
};

// The shards of a tensor of global `sizes` after the plan's steps. Communicates
// as the steps say. The result of a plan without steps is `shards`.
Shards run_steps(
    const DeviceMesh& mesh,
    SizesRef sizes,
    const RedistributePlan& plan,
    Shards shards,
    Slices slices);

}  // namespace tessera::detail
