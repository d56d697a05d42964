#include "dispatch/execute.h"

#include <optional>

#include "comm/async_errors.h"
#include "comm/comm_event.h"
#include "dispatch/agreement.h"
#include "dispatch/copied_view.h"
#include "dispatch/float_terms.h"
#include "dispatch/implicit_moves.h"
#include "dispatch/learn_dtypes.h"
#include "dispatch/plain_args.h"
#include "dispatch/run_steps.h"
#include "dispatch/tensor.h"
#include "kernels/device_errors.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

using torch::jit::Stack;

// Puts a tensor's shard in the place of the tensor itself.
void take_shard(c10::IValue& value) {
  if (value.isTensor() && is_dtensor(value.toTensor())) {
    at::Tensor shard = distributed_meta(value.toTensor()).unchecked_shards()[0];
    value = std::move(shard);
  }
}

// The same for a list of tensors. The caller's list is shared: a new one takes
// its place.
void take_shards(c10::IValue& value) {
  const auto tensors = value.toListRef();
  c10::impl::GenericList shards(value.toList().elementType());
  shards.reserve(tensors.size());
  for (auto element : tensors) {
    take_shard(element);
    shards.push_back(std::move(element));
  }
  value = shards;
}

// What the view of `base` that the op returns remembers of it.
ViewOrigin origin_of(const c10::IValue& base) {
  return base.isTensor() && is_dtensor(base.toTensor())
             ? view_origin(base.toTensor())
             : ViewOrigin();
}

// A result's spec, whose dtype was guessed, when a shard of it is there.
SpecPtr known_dtype(const SpecPtr& guess, const at::Tensor& shard) {
  return shard.scalar_type() == guess->shard_dtype
             ? guess
             : guess->with(shard.scalar_type());
}

// Calls the op on shards. Where it may throw on some ranks and not on others,
// all of them throw.
template <typename Calls>
void run_locally(const OpInfo& op, const OpPlan& plan, const Calls& calls) {
  if (plan.agrees) {
    const CommCauseGuard cause(op.name, plan.inputs);
    run_agreed(plan.mesh, op.name, calls);
  } else {
    calls();
  }
}

// What the first results of a plan tell, where it is a rule that has given
// their sizes and nobody their dtypes. `index` is among the plan's outputs.
// Throws c10::Error where odd arguments make another shape than the rule has
// thought of. Only of the first result: others may be a kernel's own notes.
[[gnu::cold]] void learn_from(
    const OpInfo& op, OpPlan& plan, size_t index, ShardsRef shards) {
  auto& spec = plan.outputs[index];
  spec = known_dtype(spec, shards[0]);
  const auto positions = plan.mesh.local_positions();
  for (size_t k = 0; k < shards.size() && index == 0; ++k) {
    const auto expected =
        local_shape(spec->sizes, plan.mesh, spec->placements, positions[k]);
    TORCH_CHECK(
        shards[k].sizes() == SizesRef(expected),
        "[",
        op.display_name,
        "] these arguments are not supported in this layout: a shard of the "
        "result has shape ",
        shards[k].sizes(),
        " where its rule expects ",
        SizesRef(expected),
        "; redistribute the arguments to Replicate(), or call it on plain "
        "tensors");
  }
}

// The common case: one shard lives here, it has the placement that the op
// wants, the op returns no list. The arguments are exchanged for their shards
// where they stand.
[[gnu::hot]] void run_on_one_shard(
    const OpInfo& op, OpPlan& plan, Stack& stack) {
  const size_t first = stack.size() - op.args.size();
  c10::SmallVector<c10::IValue, 2> originals;
  ViewOrigin origin;
  if (op.writes || op.is_view) {
    for (const auto& ret : op.returns) {
      if (ret.kind == ReturnInfo::Kind::Written) {
        originals.push_back(stack[first + ret.argument]);
      } else if (ret.kind == ReturnInfo::Kind::View) {
        origin = origin_of(stack[first + ret.argument]);
      }
    }
  }
  for (const auto& slot : plan.slots) {
    if (slot.element < 0) {
      take_shard(stack[first + slot.argument]);
    } else if (slot.element == 0) {
      take_shards(stack[first + slot.argument]);
    }
  }
  if (!plan.local_arguments.empty()) {
    for (const auto& [index, value] : plan.local_arguments[0]) {
      stack[first + index] = value;
    }
  }
  run_locally(op, plan, [&] { op.handle.callBoxed(&stack); });

  size_t next_output = 0;
  size_t next_original = 0;
  for (size_t r = 0; r < op.returns.size(); ++r) {
    auto& value = stack[first + r];
    switch (op.returns[r].kind) {
      case ReturnInfo::Kind::NotATensor:
        break;
      case ReturnInfo::Kind::Written:
        value = std::move(originals[next_original++]);
        break;
      case ReturnInfo::Kind::Fresh:
      case ReturnInfo::Kind::View: {
        const size_t output = next_output++;
        auto& spec = plan.outputs[output];
        if (spec != nullptr && value.toTensor().defined()) {
          auto shard = std::move(value).toTensor();
          if (plan.dtypes_unknown) {
            learn_from(op, plan, output, shard);
          }
          if (op.returns[r].kind == ReturnInfo::Kind::Fresh) {
            keep_planned_strides(shard, *spec, plan.contiguous[output]);
          }
          value = make_distributed(spec, std::move(shard), origin);
        }
        break;
      }
    }
  }
  plan.dtypes_unknown = false;
  plan.direct = plan.becomes_direct;
}

// The shards of each of the call's tensors, redistributed where the plan says.
std::vector<Shards> arranged_shards(
    const OpInfo& op, const OpPlan& plan, const CallTensors& call) {
  std::vector<Shards> shards(call.tensors.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto& tensor = call.tensors[i];
    if (is_dtensor(tensor)) {
      shards[i] = current_shards(tensor);
    } else if (tensor.defined()) {
      shards[i] = replicated_shards(plan.mesh, tensor);
    }
  }
  if (!plan.redistributions.empty()) {
    CommCauseGuard cause(op.name, plan.inputs);
    for (const auto& [i, from, steps] : plan.redistributions) {
      check_implicit_move(op, plan.slots[i].argument, *from, *steps);
    }
    for (const auto& [i, from, steps] : plan.redistributions) {
      shards[i] = run_steps(*from, *steps, std::move(shards[i]), plan.slices);
    }
  }
  return shards;
}

// Results of the local calls, by result and by shard; lists laid out flat.
class Results {
 public:
  Results(const OpInfo& op, const OpPlan& plan)
      : op_(op), shards_(plan.outputs.size()), plain_(op.returns.size()) {}

  // Takes one local call's results from the stack.
  void take(Stack& stack) {
    size_t next = 0;
    for (size_t r = 0; r < op_.returns.size(); ++r) {
      auto& value = stack[r];
      const auto& info = op_.returns[r];
      if (info.kind == ReturnInfo::Kind::NotATensor) {
        plain_[r] = std::move(value);
      } else if (info.kind == ReturnInfo::Kind::Written) {
        continue;
      } else if (info.is_list) {
        for (const auto& element : value.toListRef()) {
          shards_[next++].push_back(element.toTensor());
        }
      } else {
        shards_[next++].push_back(std::move(value).toTensor());
      }
    }
  }

  // Takes results without data for `position`.
  void take_empty(const OpPlan& plan, int64_t position) {
    for (size_t i = 0; i < plan.outputs.size(); ++i) {
      const auto& spec = plan.outputs[i];
      shards_[i].push_back(
          spec == nullptr ? at::Tensor()
                          : empty_shard(*spec, position, c10::kMeta));
    }
  }

  // The distributed results, in the order of the schema.
  Stack wrap(OpPlan& plan, c10::ArrayRef<c10::IValue> args) {
    Stack results;
    size_t next = 0;
    for (size_t r = 0; r < op_.returns.size(); ++r) {
      const auto& info = op_.returns[r];
      if (info.kind == ReturnInfo::Kind::NotATensor) {
        TORCH_CHECK(
            !plan.mesh.local_positions().empty(),
            "[",
            op_.display_name,
            "] this rank is outside the mesh ",
            plan.mesh.str(),
            " and holds no value");
        results.push_back(std::move(plain_[r]));
      } else if (info.kind == ReturnInfo::Kind::Written) {
        results.push_back(args[info.argument]);
      } else if (info.is_list) {
        c10::List<at::Tensor> list;
        // A list return is the op's only one: it takes all specs there are.
        while (next < plan.outputs.size()) {
          list.push_back(wrap_one(plan, next++, info, args));
        }
        results.emplace_back(std::move(list));
      } else {
        results.emplace_back(wrap_one(plan, next++, info, args));
      }
    }
    return results;
  }

 private:
  at::Tensor wrap_one(
      OpPlan& plan,
      size_t index,
      const ReturnInfo& info,
      c10::ArrayRef<c10::IValue> args) {
    auto& spec = plan.outputs[index];
    auto& shards = shards_[index];
    // A rule gives every result a shape, also one that a mask leaves out.
    if (spec == nullptr || (!shards.empty() && !shards[0].defined())) {
      return {};
    }
    if (plan.dtypes_unknown && !shards.empty()) {
      learn_from(op_, plan, index, shards);
    }
    if (!op_.is_view || plan.copies_view) {
      for (auto& shard : shards) {
        keep_planned_strides(shard, *spec, plan.contiguous[index]);
      }
    }
    ViewOrigin origin;
    if (info.kind == ReturnInfo::Kind::View) {
      origin = plan.copies_view ? copied_origin(op_, args, index, spec, shards)
                                : origin_of(args[info.argument]);
    }
    return make_distributed(spec, std::move(shards), std::move(origin));
  }

  const OpInfo& op_;
  std::vector<Shards> shards_;
  std::vector<c10::IValue> plain_;
};

// Any number of shards, redistributions and lists.
void run_on_shards(const OpInfo& op, OpPlan& plan, Stack& stack) {
  const Stack args(stack.end() - op.args.size(), stack.end());
  stack.resize(stack.size() - op.args.size());
  if (plan.copies_view && !op.returns_list && !MakeViewsNow::is_on() &&
      !plan.without_data) {
    stack.emplace_back(copied_view(op, args, plan.outputs[0]));
    return;
  }
  const auto call = call_tensors(op, args);

  std::optional<MadeLike> mode;
  for (const auto& ret : op.returns) {
    if (ret.kind == ReturnInfo::Kind::View && plan.copies_view &&
        args[ret.argument].isTensor()) {
      mode.emplace(args[ret.argument].toTensor());
    }
  }
  const auto shards = arranged_shards(op, plan, call);

  Results results(op, plan);
  Stack local;
  std::vector<at::Tensor> tensors(call.tensors.size());
  const size_t count = plan.mesh.local_positions().size();
  if (plan.dtypes_unknown &&
      (count == 0 || plan.without_data || plan.in_float != nullptr)) {
    learn_dtypes(op, plan, args, call);
  }
  const auto call_on_shard = [&](size_t k) {
    local.assign(args.begin(), args.end());
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i] = shards[i].empty() ? at::Tensor() : shards[i][k];
    }
    put_tensors(local, plan.slots, tensors);
    if (!plan.local_arguments.empty()) {
      for (const auto& [index, value] : plan.local_arguments[k]) {
        local[index] = value;
      }
    }
    if (plan.in_float != nullptr) {
      call_in_float(op, plan, local);
    } else {
      op.handle.callBoxed(&local);
    }
    results.take(local);
  };
  if (plan.without_data) {
    for (const int64_t position : plan.mesh.local_positions()) {
      results.take_empty(plan, position);
    }
  } else {
    run_locally(op, plan, [&] {
      for (size_t k = 0; k < count; ++k) {
        call_on_shard(k);
      }
    });
  }
  for (auto& value : results.wrap(plan, args)) {
    stack.push_back(std::move(value));
  }
  plan.dtypes_unknown = false;
}

}  // namespace

void raise_errors_of_devices() {
  raise_device_errors();
  raise_async_errors();
}

void execute(const OpInfo& op, OpPlan& plan, Stack& stack) {
  if (plan.on_one_shard) {
    run_on_one_shard(op, plan, stack);
  } else {
    run_on_shards(op, plan, stack);
  }
  raise_errors_of_devices();
}

}  // namespace tessera::detail
