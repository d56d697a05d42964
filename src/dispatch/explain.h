// How the plan of a call comes about, as text.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <string>

namespace tessera::detail {

// The rows considered for this call, their prices and the choice; of an op that
// is composed, those of each op that it runs. `args` are all of the op's
// arguments. Computes and sends nothing. Throws what the call itself would
// throw.
std::string explain_op(
    const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args);

// The same for whatever `call` does with the tensors that it is given: copies
// of `tensors` without data. `name` is what the text calls it.
std::string explain_call(
    const std::string& name,
    const std::function<void(at::TensorList)>& call,
    at::TensorList tensors);

}  // namespace tessera::detail
