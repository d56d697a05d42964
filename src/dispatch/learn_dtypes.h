// The dtypes of results that no local call will tell.
#pragma once

#include "dispatch/op_plan.h"

namespace tessera::detail {

// Where the dtypes in plan.outputs are guesses and no shard with data lives
// here (a rank outside the mesh, or meta shards of an op without a meta
// kernel): calls the op once on small tensors of the call's kinds and corrects
// them. `tensors` are the call's. Where the op refuses the small tensors the
// guesses stay. Does not communicate.
void learn_dtypes(
    const OpInfo& op,
    OpPlan& plan,
    c10::ArrayRef<c10::IValue> args,
    const CallTensors& tensors);

}  // namespace tessera::detail
