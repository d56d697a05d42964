// Local calls in float, where sums of half or bfloat16 numbers are pending.
// Both what comes in as float terms and what goes out as such may be mixed with
// half shards, which most ops do not accept.
#pragma once

#include <ATen/core/stack.h>

#include <memory>
#include <optional>
#include <vector>

#include "dispatch/op_plan.h"

namespace tessera::detail {

// What of a local call is in float, found when it is planned.
struct FloatTerms {
  // The tensors of the call that are converted, by their slots.
  std::vector<TensorSlot> converted;
  // Arguments that name the dtype of the results, if it is half or not given.
  std::vector<uint32_t> dtypes;
  // The product of two half matrices in float (mm.dtype, bmm.dtype), where the
  // op is one and the device has it: then nothing is converted.
  std::optional<c10::OperatorHandle> product;
};

// What of a call is in float, whose plan has inputs and outputs already, and
// whose tensors are redistributed to `inputs`; nullptr if nothing is.
std::shared_ptr<const FloatTerms> plan_float_terms(
    const OpInfo& op,
    const OpPlan& plan,
    c10::ArrayRef<c10::IValue> args,
    c10::ArrayRef<Placements> inputs);

// Calls the op on the shards in the stack. Results have the dtypes of their
// shards: float for those that are left pending, the specs' own for others.
// What the op writes is written in the dtype that it has.
void call_in_float(
    const OpInfo& op, const OpPlan& plan, torch::jit::Stack& stack);

}  // namespace tessera::detail
