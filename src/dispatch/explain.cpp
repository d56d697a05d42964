#include "dispatch/explain.h"

#include <c10/core/GradMode.h>

#include "dispatch/call_key.h"
#include "dispatch/embedding.h"
#include "dispatch/op_plan.h"
#include "dispatch/plain_args.h"

namespace tessera::detail {

namespace {

void check_tensors(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  bool distributed = false;
  const auto call = call_tensors(op, args);
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& tensor = call.tensors[i];
    distributed |= is_dtensor(tensor);
    // A call would convert it in place; an explanation changes nothing.
    TORCH_CHECK_VALUE(
        !tensor.defined() || is_dtensor(tensor) ||
            !op.written_args[call.slots[i].argument],
        "[explain] ",
        op.display_name,
        " writes argument '",
        op.handle.schema().arguments()[call.slots[i].argument].name(),
        "', which is a plain tensor: distribute it first");
  }
  TORCH_CHECK_VALUE(
      distributed,
      "[explain] none of the tensors given to ",
      op.display_name,
      " is distributed: make them with distribute_tensor or empty(shape, mesh, "
      "placements, at::kMeta)");
}

}  // namespace

std::string explain_op(
    const c10::OperatorHandle& handle, c10::ArrayRef<c10::IValue> args) {
  const c10::NoGradGuard no_grad;
  const OpInfo op(handle);
  check_tensors(op, args);
  // Carried out by ops of our own.
  if (op.name == "aten::embedding") {
    return explain_embedding(args);
  }
  if (op.name == "aten::gather") {
    return explain_gather(args);
  }
  if (op.name == "aten::_embedding_bag" ||
      op.name == "aten::_embedding_bag_forward_only") {
    return explain_embedding_bag(args);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.rule() != nullptr,
      "[explain] ",
      op.display_name,
      " has no rule of its own: either it is made of other ops, about which "
      "explain can be asked (call it under CommDebugMode to see those that "
      "communicate), or it is not supported");
  if (CallKey(op, args, /*ignores_numbers=*/true).has_plain_tensor()) {
    admit_plain_tensors(op, args);
  }
  return explain_plan(op, args);
}

}  // namespace tessera::detail
