// The dtypes of results that no local call will tell.
#pragma once

#include "dispatch/op_plan.h"

namespace tessera::detail {

// Where the dtypes in plan.outputs are guesses and no shard with data lives
// here (a rank outside the mesh, or meta shards of an op without a meta
// kernel): calls the op once on zeros of the global shapes and corrects them.
// Leaves the guesses where the tensors are too large to be made for that.
void learn_dtypes(
    const OpInfo& op, OpPlan& plan, c10::ArrayRef<c10::IValue> args);

}  // namespace tessera::detail
