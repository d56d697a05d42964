// The boxed kernel: the life of an op on distributed tensors.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

#include "dispatch/op_info.h"

namespace tessera::detail {

// Takes the op's arguments from the stack, leaves its results there.
void run_op(const OpInfo& op, torch::jit::Stack* stack);

// The kernel of one op, registered by its name.
class OpKernel final : public c10::OperatorKernel {
 public:
  explicit OpKernel(const c10::OperatorHandle& op) : op_(op) {}
  void operator()(
      const c10::OperatorHandle&,
      c10::DispatchKeySet,
      torch::jit::Stack* stack) {
    run_op(op_, stack);
  }

 private:
  OpInfo op_;
};

// The kernel of ops that were not there when the library was loaded.
void fallback_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace tessera::detail
