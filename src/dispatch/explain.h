// How the plan of a call comes about, as text.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace tessera::detail {

// The rows considered for this call, their prices and the choice. `args` are
// all of the op's arguments. Computes and sends nothing. Throws what the call
// itself would throw; c10::NotImplementedError for an op that has no rule.
std::string explain_op(
    const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args);

}  // namespace tessera::detail
