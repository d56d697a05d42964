// Carrying out a planned call on the shards.
#pragma once

#include <ATen/core/stack.h>

#include "dispatch/op_info.h"
#include "dispatch/op_plan.h"

namespace tessera::detail {

// Takes the op's arguments from the stack, runs the plan (its redistributions,
// and the op on each local shard), and leaves the results there. Communicates
// as the plan says. The plan learns the dtypes that it does not know.
[[gnu::hot]] void execute(
    const OpInfo& op, OpPlan& plan, torch::jit::Stack& stack);

// Results lie in memory as their spec says, or a view of it would be none of
// the shards. Kernels give them so, but for some of which only the sizes are
// known beforehand. `contiguous`: the spec's strides are.
inline void keep_planned_strides(
    at::Tensor& shard, const Spec& spec, bool contiguous) {
  if (shard.layout() == at::kStrided &&
      !(contiguous && shard.is_contiguous())) {
    shard = with_strides_of(spec, std::move(shard));
  }
}

// Raises what kernels and collectives on a GPU have met by now; behind an op
// that waits for the device, all of it.
[[gnu::hot]] void raise_errors_of_devices();

}  // namespace tessera::detail
