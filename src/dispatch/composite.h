// Ops that ATen makes of others, above our kernels, and that write in place
// into results of their own: mean(...).add_(eps). What they write may lie such
// that the op cannot keep the layout, a pending sum say. The caller never hears
// of it: it is redistributed first, as in derivative formulas. Elsewhere a
// write into a pending reduction is refused.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/macros/Macros.h>

#include "dispatch/op_info.h"

namespace tessera::detail {

// Whether such an op is running in this thread.
bool in_composite();

// Whether a call writes into a tensor that is not replicated and no view:
// nobody but the composite op can see that it is redistributed.
bool writes_own(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

// Redistributes what the call writes, in place: pending reductions are reduced;
// where there are none, all is replicated. Communicates.
void move_written(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

// Reduces what is pending of what the call writes, in place. Communicates.
void reduce_written(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

// While one is alive, such an op is running in this thread.
class CompositeScope {
 public:
  CompositeScope();
  ~CompositeScope();
  C10_DISABLE_COPY_AND_ASSIGN(CompositeScope);
};

// Whether ATen makes the op of others, above every backend.
bool is_composite(const c10::OperatorHandle& op);
// The keys with which an op that is called anew runs ATen's composition.
extern const c10::DispatchKeySet kComposition;
// Runs it. Requires: there is one.
void run_composite(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace tessera::detail
