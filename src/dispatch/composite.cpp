#include "dispatch/composite.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "dispatch/autograd.h"
#include "dispatch/tensor.h"

namespace tessera::detail {

namespace {

thread_local int depth = 0;

bool is_own(const at::Tensor& tensor) {
  if (!is_dtensor(tensor) || tensor.is_view()) {
    return false;
  }
  const auto& placements = distributed_meta(tensor).spec->placements;
  return !std::all_of(placements.begin(), placements.end(), [](const auto& p) {
    return p.is_replicate();
  });
}

// Without pending reductions; replicated where there are none.
Placements moved_placements(const Placements& placements) {
  auto reduced = grad_placements_of(placements);
  return reduced == placements ? Placements(placements.size(), Replicate())
                               : reduced;
}

template <typename Visit>
void for_each_own(
    const OpInfo& op, c10::ArrayRef<c10::IValue> args, const Visit& visit) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.written_args[i] && args[i].isTensor() &&
        is_own(args[i].toTensor())) {
      visit(args[i].toTensor());
    }
  }
}

}  // namespace

CompositeScope::CompositeScope() { ++depth; }
CompositeScope::~CompositeScope() { --depth; }

bool in_composite() { return depth > 0; }

bool writes_own(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  bool found = false;
  for_each_own(op, args, [&](const at::Tensor&) { found = true; });
  return found;
}

void move_written(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  const c10::NoGradGuard no_grad;
  for_each_own(op, args, [&](const at::Tensor& tensor) {
    const auto& placements = distributed_meta(tensor).spec->placements;
    become(tensor, redistribute(tensor, moved_placements(placements), op.name));
  });
}

void reduce_written(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  const c10::NoGradGuard no_grad;
  for_each_own(op, args, [&](const at::Tensor& tensor) {
    const auto& placements = distributed_meta(tensor).spec->placements;
    const auto reduced = grad_placements_of(placements);
    if (reduced != placements) {
      become(tensor, redistribute(tensor, reduced, op.name));
    }
  });
}

bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(
      c10::DispatchKey::CompositeImplicitAutograd);
}

// A key for which nobody registers kernels: it leads to the composite one.
const c10::DispatchKeySet kComposition(c10::DispatchKey::AutogradPrivateUse2);

void run_composite(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(kComposition, stack);
}

}  // namespace tessera::detail
