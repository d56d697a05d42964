// The global sizes, strides and dtypes of an op's results, without data.
#pragma once

#include <vector>

#include "dispatch/op_plan.h"

namespace tessera::detail {

struct InferredOutput {
  bool defined = false;
  Sizes sizes;
  Sizes strides;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  // Of a view: how many elements behind its base it begins.
  int64_t offset = 0;
};

struct InferredOutputs {
  // For each return: its tensors (one, or a list's).
  std::vector<std::vector<InferredOutput>> returns;
  // Otherwise the dtypes are guesses: see learn_dtypes.h.
  bool dtypes_known = true;
};

// Asks the op's meta kernel, or else the rule. `tensors` are the call's tensor
// arguments as rules see them; `call` holds the same. Shape errors are ATen's
// own. Throws c10::NotImplementedError if neither can tell, unless the op only
// writes arguments: then nothing is known of its results.
InferredOutputs infer_outputs(
    const OpInfo& op,
    const Rule& rule,
    c10::ArrayRef<c10::IValue> args,
    const CallTensors& tensors,
    const OpCall& call);

}  // namespace tessera::detail
