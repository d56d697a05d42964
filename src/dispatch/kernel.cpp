#include "dispatch/kernel.h"

#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>

#include <unordered_map>
#include <vector>

#include "dispatch/call_key.h"
#include "dispatch/composite.h"
#include "dispatch/execute.h"
#include "dispatch/fallback.h"
#include "dispatch/formula.h"
#include "dispatch/grad_layout.h"
#include "dispatch/op_plan.h"
#include "dispatch/plain_args.h"
#include "dispatch/plan_cache.h"
#include "dispatch/scopes.h"
#include "dispatch/tangents.h"
#include "dispatch/tensor.h"
#include "dispatch/term_factors.h"
#include "dispatch/write_at_owners.h"
#include "kernels/device_errors.h"

namespace tessera::detail {

namespace {

using torch::jit::Stack;
using Args = c10::ArrayRef<c10::IValue>;

// Calls `each` with every tensor that the call writes.
template <typename Each>
void for_each_written(const OpInfo& op, Args args, const Each& each) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (!op.written_args[i]) {
      continue;
    }
    if (args[i].isTensor()) {
      each(args[i].toTensor());
    } else if (args[i].isTensorList()) {
      for (const auto& element : args[i].toListRef()) {
        each(element.toTensor());
      }
    }
  }
}

// Before an op writes: plain tensors are converted or refused. Whether a copied
// view is written.
bool check_written(const OpInfo& op, Args args) {
  bool copied = false;
  for_each_written(op, args, [&](const at::Tensor& tensor) {
    if (!is_dtensor(tensor)) {
      admit_plain_tensors(op, args);
    } else {
      copied |= distributed_meta(tensor).is_copied_view();
    }
  });
  return copied;
}

// After copied views among the arguments were made current, which must seem old
// when this call is over.
void count_writes(const OpInfo& op, Args args) {
  for_each_written(op, args, [](const at::Tensor& tensor) {
    if (is_dtensor(tensor)) {
      distributed_meta(tensor).count_write();
    }
  });
}

// The tensor of which a view op returns a view. Null for views of a list's.
const at::Tensor* viewed_tensor(const OpInfo& op, Args args) {
  for (const auto& ret : op.returns) {
    if (ret.kind == ReturnInfo::Kind::View && args[ret.argument].isTensor()) {
      return &args[ret.argument].toTensor();
    }
  }
  return nullptr;
}

// Where views begin is what one device says, whatever the shards are. `base` is
// in bytes, as a view may have another dtype.
void place_views(
    const OpInfo& op, const OpPlan& plan, int64_t base, Stack& stack) {
  const size_t first = stack.size() - op.returns.size();
  size_t output = 0;
  const auto place = [&](const at::Tensor& view) {
    const auto& offsets = plan.view_offsets;
    const int64_t offset = output < offsets.size() ? offsets[output] : 0;
    if (view.defined()) {
      const auto size = static_cast<int64_t>(view.itemsize());
      view.unsafeGetTensorImpl()->set_storage_offset(base / size + offset);
    }
    ++output;
  };
  for (size_t r = 0; r < op.returns.size(); ++r) {
    const auto& value = stack[first + r];
    if (op.returns[r].kind == ReturnInfo::Kind::Fresh) {
      ++output;
    } else if (op.returns[r].kind != ReturnInfo::Kind::View) {
      continue;
    } else if (op.returns[r].is_list) {
      for (const auto& element : value.toListRef()) {
        place(element.toTensor());
      }
    } else {
      place(value.toTensor());
    }
  }
}

// Whether what the call writes is a tensor that a composite op or a derivative
// formula has made for itself: nobody else sees that it is redistributed. What
// calls the formula of a tangent cannot be told, so that a program that writes
// into a pending reduction then sees it.
bool writes_its_own(const OpInfo& op, Args args) {
  return (in_composite() || in_derivative_formula() || may_have_tangents()) &&
         writes_own(op, args);
}

// Whether a tensor that the call writes is a pending reduction, of which a rank
// cannot write its part.
bool writes_pending(const OpInfo& op, const CallTensors& call) {
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    if (!op.written_args[call.slots[i].argument] ||
        !is_dtensor(call.tensors[i])) {
      continue;
    }
    for (const auto& p : distributed_meta(call.tensors[i]).spec->placements) {
      if (p.is_partial()) {
        return true;
      }
    }
  }
  return false;
}

// Plans a call. Where no row keeps the layout of what is written the plan says
// so and nothing else: a composite op's own tensor is redistributed first,
// another's call runs on gathered inputs.
std::shared_ptr<OpPlan> make_plan(const OpInfo& op, Args args) {
  if (!op.writes) {
    return plan_op(op, args);
  }
  try {
    return plan_op(op, args);
  } catch (const c10::NotImplementedError&) {
    const auto call = call_tensors(op, args);
    const bool own = writes_its_own(op, args);
    if (!own && (is_strict() || writes_pending(op, call))) {
      throw;
    }
    auto plan =
        std::make_shared<OpPlan>(common_mesh(op.display_name, call.tensors));
    for (const auto& tensor : call.tensors) {
      plan->inputs.push_back(
          is_dtensor(tensor) ? distributed_meta(tensor).spec : nullptr);
    }
    plan->moves_written = own;
    plan->gathers_written = !own;
    plan->is_special = true;
    return plan;
  }
}

void run_without_rule(const OpInfo& op, Args args, Stack& stack) {
  if (op.writes && in_composite()) {
    reduce_written(op, args);
  }
  const auto call = call_tensors(op, args);
  keep_grad_layouts(call.tensors);
  if (op.writes) {
    for (const auto& tensor : call.tensors) {
      if (is_dtensor(tensor)) {
        current_shards(tensor);
      }
    }
    count_writes(op, args);
  }
  run_on_gathered(op, &stack);
  raise_errors_of_devices();
}

Args arguments_of(const OpInfo& op, const Stack& stack) {
  return Args(stack.data() + stack.size() - op.args.size(), op.args.size());
}

template <bool kIsView>
[[gnu::hot]] void carry_out(
    const OpInfo& op, OpPlan& plan, Stack& stack, int64_t base) {
  execute(op, plan, stack);
  if (kIsView && (base != 0 || !plan.view_offsets.empty())) {
    place_views(op, plan, base, stack);
  }
}

template <bool kIsView>
void run_new_or_special(
    const OpInfo& op,
    Args args,
    Stack& stack,
    int64_t base,
    const CallKey& key,
    std::shared_ptr<OpPlan> plan);

// Finds the plan of a call, or makes it, and carries it out. `base` is where
// the tensor begins of which the op returns a view, in bytes.
template <bool kIsView>
[[gnu::hot]] void plan_and_execute(
    const OpInfo& op, Args args, Stack& stack, int64_t base = 0) {
  const Rule* rule = op.rule();
  if (C10_UNLIKELY(rule == nullptr)) {
    return run_without_rule(op, args, stack);
  }
  const CallKey key(op, *rule, args);
  if (key.has_plain_tensor()) {
    admit_plain_tensors(op, args);
  }
  if (C10_UNLIKELY(key.has_new_leaf())) {
    keep_grad_layouts(call_tensors(op, args).tensors);
  }
  if (op.writes) {
    count_writes(op, args);
  }
  auto& plans = PlanCache::local();
  if (C10_UNLIKELY(plans.observer != nullptr)) {
    plans.observer->on_op(op, args);
  }
  auto plan = plans.find(key);
  if (C10_LIKELY(plan != nullptr && !plan->is_special)) {
    return carry_out<kIsView>(op, *plan, stack, base);
  }
  run_new_or_special<kIsView>(op, args, stack, base, key, std::move(plan));
}

// A call whose plan is not known, or that takes more than to execute it.
template <bool kIsView>
[[gnu::noinline]] void run_new_or_special(
    const OpInfo& op,
    Args args,
    Stack& stack,
    int64_t base,
    const CallKey& key,
    std::shared_ptr<OpPlan> plan) {
  const bool known = plan != nullptr;
  if (!known || (plan->moves_written && !writes_its_own(op, args)) ||
      (plan->gathers_written && (is_strict() || writes_its_own(op, args)))) {
    plan = make_plan(op, args);
  }
  if (plan->moves_written) {
    move_written(op, args);
    plan_and_execute<kIsView>(op, args, stack, base);
  } else if (plan->gathers_written) {
    run_on_gathered(op, &stack);
    raise_device_errors();
  } else if (plan->factors != nullptr && !are_finite(*plan->factors, args)) {
    run_reduced(op, stack, [](const OpInfo& same, Stack& reduced) {
      plan_and_execute<kIsView>(same, arguments_of(same, reduced), reduced);
    });
  } else {
    carry_out<kIsView>(op, *plan, stack, base);
  }
  if (!known && key.cacheable()) {
    PlanCache::local().insert(key, std::move(plan));
  }
}

[[gnu::hot]] void run_view(const OpInfo& op, Args args, Stack& stack) {
  const auto* base = viewed_tensor(op, args);
  int64_t begin = 0;
  if (base != nullptr && C10_UNLIKELY(base->storage_offset() != 0)) {
    begin = base->storage_offset() * static_cast<int64_t>(base->itemsize());
  }
  if (c10::InferenceMode::is_enabled()) {
    const MadeLike mode(base != nullptr ? *base : at::Tensor());
    return plan_and_execute<true>(op, args, stack, begin);
  }
  plan_and_execute<true>(op, args, stack, begin);
}

// A write into copied views: on the shards of their base where every rank knows
// what to write, otherwise into the copies, which are then put back.
void write_copied_views(const OpInfo& op, Args args, Stack& stack) {
  if (write_at_owners(op, stack)) {
    raise_errors_of_devices();
    return;
  }
  std::vector<at::Tensor> copies;
  for_each_written(op, args, [&](const at::Tensor& tensor) {
    if (is_dtensor(tensor) && distributed_meta(tensor).is_copied_view()) {
      begin_write(tensor, op.display_name);
      copies.push_back(tensor);
    }
  });
  try {
    plan_and_execute<false>(op, args, stack);
  } catch (...) {
    for (const auto& copy : copies) {
      distributed_meta(copy).copied_view().abandon_write();
    }
    throw;
  }
  for (const auto& copy : copies) {
    end_write(copy, op.name);
  }
}

}  // namespace

// Autograd makes a view that was written anew with as_strided, which shards
// cannot follow, unless it recorded how to replay it. It looks at this state
// after our kernel, so it stays set; but recording slows views down, plain ones
// too, and those made without gradients are never made anew.
void record_views() {
  // Who had it set before us keeps it. Never taken back: a backward pass
  // restores the state that it found, which may be ours.
  thread_local bool ours = false;
  auto& state = c10::AutogradState::get_tls_state();
  if (!state.get_grad_mode()) {
    if (ours) {
      state.set_view_replay_enabled(false);
    }
  } else if (!state.get_view_replay_enabled()) {
    ours = true;
    state.set_view_replay_enabled(true);
  }
}

void run_op(const OpInfo& op, Stack* stack) {
  const LocalOpGuard guard(op.is_view);
  const Args args = arguments_of(op, *stack);
  if (op.is_view) {
    return run_view(op, args, *stack);
  }
  if (op.writes && check_written(op, args)) {
    return write_copied_views(op, args, *stack);
  }
  plan_and_execute<false>(op, args, *stack);
}

torch::CppFunction boxed_kernel(const char* name) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<OpKernel>(
      c10::Dispatcher::singleton().findSchemaOrThrow(name, "")));
}

void fallback_kernel(const c10::OperatorHandle& handle, Stack* stack) {
  // One a thread, as the plans are: no lock, and few ops come this way.
  thread_local std::unordered_map<c10::OperatorName, std::unique_ptr<OpInfo>>
      ops;
  auto& op = ops[handle.operator_name()];
  if (op == nullptr) {
    op = std::make_unique<OpInfo>(handle);
  }
  run_op(*op, stack);
}

}  // namespace tessera::detail
