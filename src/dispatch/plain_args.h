// Plain tensors among distributed arguments: which are taken as replicated.
#pragma once

#include <c10/macros/Macros.h>

#include "dispatch/op_plan.h"

namespace tessera::detail {

// Between the two, plain tensors are taken as replicated in this thread; nests.
void enter_implicit_replication();
void leave_implicit_replication();

// While one is alive.
class ImplicitScope {
 public:
  ImplicitScope() { enter_implicit_replication(); }
  ~ImplicitScope() { leave_implicit_replication(); }
  C10_DISABLE_COPY_AND_ASSIGN(ImplicitScope);
};

// Called when a plain tensor that is no scalar is among the arguments, or a
// plain tensor is written. One of a single element is taken as a number is, the
// same on every rank, unless it requires a gradient. Of others, where plain
// tensors are taken as replicated, turns the written ones into replicated
// tensors in place; elsewhere throws c10::Error and says which argument is
// plain and how to convert it.
void admit_plain_tensors(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

// A plain tensor that every rank has: its layout, its shards (itself), and the
// distributed tensor of them, through which gradients flow.
SpecPtr replicated_spec(const DeviceMesh& mesh, const at::Tensor& plain);
Shards replicated_shards(const DeviceMesh& mesh, const at::Tensor& plain);
at::Tensor replicated(const DeviceMesh& mesh, const at::Tensor& plain);

}  // namespace tessera::detail
