// The boxed kernel: the life of an op on distributed tensors.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "dispatch/op_info.h"

namespace tessera::detail {

// Tells autograd whether to record how to replay the view that is being made.
void record_views();

// What holds while local ops run: no autograd and no autocast.
class LocalOpGuard {
 public:
  explicit LocalOpGuard(bool is_view) {
    if (is_view) {
      record_views();
    }
  }

 private:
  c10::impl::ExcludeDispatchKeyGuard exclude_{
      c10::autograd_dispatch_keyset_with_ADInplaceOrView |
      c10::autocast_dispatch_keyset};
};

// Takes the op's arguments from the stack, leaves its results there.
[[gnu::hot]] void run_op(const OpInfo& op, torch::jit::Stack* stack);

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

// That of an op of our own, by its qualified name.
torch::CppFunction boxed_kernel(const char* name);

// The kernel of ops that were not there when the library was loaded.
void fallback_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace tessera::detail
