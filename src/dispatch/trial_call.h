// Whether kernels throw for what a shard is, whatever it holds: some check
// dtypes and numbers only where there is something to compute, or only where
// there is nothing. A rank whose shard is empty would throw alone, or be the
// only one that does not.
#pragma once

#include "dispatch/op_plan.h"
#include "plan/propagate.h"

namespace tessera::detail {

// A call whose plan is made, but for what depends on this.
struct TrialCall {
  const OpInfo& op;
  const OpPlan& plan;
  c10::ArrayRef<c10::IValue> args;
  const CallTensors& tensors;
  const OpCall& call;
  const PropagationResult& chosen;
  c10::ArrayRef<Sizes> output_sizes;
};

// Which ranks the local op throws on, as far as small tensors tell.
struct Throws {
  bool with_elements = false;
  bool without = false;
};

// Tries the call on tensors of the shapes and dtypes of the first rank's
// shards, which are the largest, and of the last rank's. Nothing is tried of
// ops that draw random numbers or that are given more than 65,536 elements.
// Does not communicate.
Throws try_shards(const TrialCall& trial);

}  // namespace tessera::detail
