#include "dispatch/op_plan.h"

#include <algorithm>
#include <stdexcept>

#include "core/terms.h"
#include "dispatch/agreement.h"
#include "dispatch/float_terms.h"
#include "dispatch/infer.h"
#include "dispatch/plain_args.h"
#include "dispatch/term_factors.h"
#include "dispatch/trial_call.h"
#include "plan/propagate.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

CallTensors call_tensors(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  CallTensors call;
  const auto add = [&](size_t argument, int32_t element, const auto& value) {
    call.slots.push_back({static_cast<uint32_t>(argument), element});
    call.tensors.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
  };
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i] == ArgKind::Tensor) {
      add(i, -1, args[i]);
    } else if (op.args[i] == ArgKind::TensorList && args[i].isList()) {
      const auto list = args[i].toListRef();
      for (size_t e = 0; e < list.size(); ++e) {
        add(i, static_cast<int32_t>(e), list[e]);
      }
    }
  }
  return call;
}

void put_tensors(
    torch::jit::Stack& args,
    c10::ArrayRef<TensorSlot> slots,
    c10::ArrayRef<at::Tensor> tensors) {
  for (size_t i = 0; i < slots.size(); ++i) {
    auto& value = args[slots[i].argument];
    if (slots[i].element < 0) {
      if (!value.isNone()) {
        value = tensors[i];
      }
      continue;
    }
    if (slots[i].element == 0) {
      value = c10::impl::GenericList(value.toList().elementType());
    }
    value.toList().push_back(
        tensors[i].defined() ? c10::IValue(tensors[i]) : c10::IValue());
  }
}

DeviceMesh common_mesh(
    std::string_view caller, c10::ArrayRef<at::Tensor> tensors) {
  const DeviceMesh* mesh = nullptr;
  for (const auto& tensor : tensors) {
    if (!is_dtensor(tensor)) {
      continue;
    }
    const DeviceMesh& other = distributed_meta(tensor).spec->mesh;
    if (mesh == nullptr) {
      mesh = &other;
    }
    if (*mesh == other) {
      continue;
    }
    // Throw if the world of one has ended: its text says no more than the
    // other's.
    collectives(*mesh);
    collectives(other);
    TORCH_CHECK_VALUE(
        false,
        "[",
        caller,
        "] arguments live on different meshes, ",
        mesh->str(),
        " and ",
        other.str(),
        ": take full_tensor() of one and distribute that on the other's mesh");
  }
  TORCH_INTERNAL_ASSERT(mesh != nullptr, "no distributed argument");
  return *mesh;
}

namespace {

SpecPtr spec_of(const at::Tensor& tensor, const DeviceMesh& mesh) {
  if (!tensor.defined()) {
    return nullptr;
  }
  if (is_dtensor(tensor)) {
    return distributed_meta(tensor).spec;
  }
  return replicated_spec(mesh, tensor);
}

std::vector<TensorArg> tensor_args(c10::ArrayRef<SpecPtr> specs) {
  std::vector<TensorArg> args(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i] != nullptr) {
      args[i] = {specs[i]->sizes, specs[i]->strides, specs[i]->dtype, true};
    }
  }
  return args;
}

// For each return, which tensor of the call it writes and returns; -1 for none.
Sizes written_tensors(const OpInfo& op, const CallTensors& call) {
  Sizes written;
  for (const auto& ret : op.returns) {
    int64_t index = -1;
    if (ret.kind == ReturnInfo::Kind::Written) {
      for (size_t i = 0; i < call.slots.size() && index < 0; ++i) {
        if (static_cast<int32_t>(call.slots[i].argument) == ret.argument) {
          index = static_cast<int64_t>(i);
        }
      }
    }
    written.push_back(index);
  }
  return written;
}

// What a row's output placements are about, one a return.
struct Leading {
  std::vector<Sizes> sizes;
  c10::SmallVector<bool, 2> defined;
};

Leading leading_outputs(
    const InferredOutputs& outputs,
    c10::ArrayRef<int64_t> written,
    c10::ArrayRef<SpecPtr> inputs) {
  Leading leading;
  for (size_t r = 0; r < written.size(); ++r) {
    if (written[r] >= 0) {
      leading.sizes.push_back(inputs[written[r]]->sizes);
      leading.defined.push_back(true);
    } else if (outputs.returns[r].empty()) {
      leading.sizes.emplace_back();
      leading.defined.push_back(false);
    } else {
      leading.sizes.push_back(outputs.returns[r][0].sizes);
      leading.defined.push_back(outputs.returns[r][0].defined);
    }
  }
  return leading;
}

// Written tensors are not resized: they must have the result's shape already.
void check_written_sizes(
    const OpInfo& op,
    const InferredOutputs& outputs,
    c10::ArrayRef<int64_t> written,
    c10::ArrayRef<SpecPtr> inputs) {
  for (size_t r = 0; r < written.size(); ++r) {
    if (written[r] < 0 || outputs.returns[r].size() != 1) {
      continue;
    }
    const auto& expected = outputs.returns[r][0].sizes;
    const auto& given = inputs[written[r]]->sizes;
    TORCH_CHECK(
        expected == given,
        "[",
        op.display_name,
        "] writes a result of shape ",
        SizesRef(expected),
        " into a distributed tensor of shape ",
        SizesRef(given),
        ", which cannot be resized");
  }
}

// One call on its way to a plan: what is known of it before a row is chosen.
class Planner {
 public:
  Planner(const OpInfo& op, c10::ArrayRef<c10::IValue> args)
      : op_(op),
        args_(args),
        rule_(*op.rule()),
        tensors_(call_tensors(op, args)),
        plan_(std::make_shared<OpPlan>(
            common_mesh(op.display_name, tensors_.tensors))) {
    for (const auto& tensor : tensors_.tensors) {
      plan_->inputs.push_back(spec_of(tensor, plan_->mesh));
    }
    plan_->slots = tensors_.slots;
    call_.emplace(op.handle.schema(), args, tensor_args(plan_->inputs));
    outputs_ = infer_outputs(op, rule_, args, tensors_, *call_);
    written_ = written_tensors(op, tensors_);
    check_written_sizes(op, outputs_, written_, plan_->inputs);
    leading_ = leading_outputs(outputs_, written_, plan_->inputs);
    for (const auto& slot : tensors_.slots) {
      written_inputs_.push_back(op.written_args[slot.argument]);
    }
  }

  std::string explanation() const {
    return explain_propagation(propagation_input(), rule_.rows(*call_));
  }

  // The plan; nullptr if the op refuses the empty shards that some rank has in
  // it, which one device's tensors are not. With `shards` NonEmpty no rank has
  // one.
  std::shared_ptr<OpPlan> plan(Needs shards) {
    Rows rows = rule_.rows(*call_);
    for (Row& row : rows) {
      row.needs = std::max(row.needs, shards);
    }
    const PropagationResult chosen = choose(propagation_input(), rows);
    plan_redistributions(chosen);
    plan_outputs(chosen);
    plan_->in_float = plan_float_terms(op_, *plan_, args_, chosen.inputs);
    if (!rule_.local_arguments.empty()) {
      plan_local_arguments(chosen);
    }
    const Throws throws = throws_of(chosen);
    if (throws.without && !throws.with_elements && shards == Needs::Nothing) {
      return nullptr;
    }
    plan_->agrees =
        throws.without != throws.with_elements || may_throw_on_one_rank(chosen);
    plan_->on_one_shard = plan_->mesh.local_positions().size() == 1 &&
                          plan_->redistributions.empty() && !op_.returns_list &&
                          !plan_->without_data && plan_->in_float == nullptr;
    plan_->factors = plan_term_factors(op_, *plan_, args_, chosen);
    plan_->is_special = plan_->factors != nullptr;
    plan_->becomes_direct =
        !plan_->agrees && !plan_->is_special && plan_->local_arguments.empty();
    return std::move(plan_);
  }

 private:
  PropagationInput propagation_input() const {
    return {
        *call_,
        plan_->mesh,
        plan_->inputs,
        leading_.sizes,
        written_,
        written_inputs_,
        leading_.defined};
  }

  void plan_redistributions(const PropagationResult& chosen) {
    // A view of a slice that aliases could not be viewed further.
    plan_->slices = op_.is_view         ? Slices::Copy
                    : rule_.elementwise ? Slices::Alias
                                        : Slices::Contiguous;
    auto arranged = tensor_args(plan_->inputs);
    for (size_t i = 0; i < plan_->inputs.size(); ++i) {
      const auto& spec = plan_->inputs[i];
      if (spec == nullptr || spec->placements == chosen.inputs[i]) {
        continue;
      }
      auto steps = cached_redistribution(*spec, chosen.inputs[i]);
      if (!steps->steps.empty()) {
        plan_->redistributions.push_back({i, spec, std::move(steps)});
        arranged[i].strides = strides_after(
            plan_->mesh,
            spec->sizes,
            spec->strides,
            *plan_->redistributions.back().plan,
            plan_->slices);
        plan_->copies_view |= op_.is_view;
      }
    }
    // Results may follow the strides that redistributed shards have. A copied
    // view has those that it would have without a copy.
    if (!plan_->redistributions.empty() && !op_.only_writes && !op_.is_view) {
      const OpCall call(op_.handle.schema(), args_, std::move(arranged));
      outputs_ = infer_outputs(op_, rule_, args_, tensors_, call);
    }
  }

  void plan_outputs(const PropagationResult& chosen) {
    plan_->dtypes_unknown = !outputs_.dtypes_known && !op_.only_writes;
    plan_->without_data = on_meta() && !leaves_meta();
    for (size_t r = 0; r < op_.returns.size(); ++r) {
      if (op_.returns[r].kind == ReturnInfo::Kind::Written) {
        continue;
      }
      for (const auto& output : outputs_.returns[r]) {
        plan_->contiguous.push_back(
            output.strides == row_major_strides(output.sizes));
        if (op_.is_view && output.offset != 0) {
          plan_->view_offsets.resize(plan_->outputs.size() + 1);
          plan_->view_offsets.back() = output.offset;
        }
        plan_->outputs.push_back(
            output.defined ? Spec::make(
                                 plan_->mesh,
                                 chosen.outputs[r],
                                 output.sizes,
                                 output.strides,
                                 output.dtype,
                                 shard_dtype_of(r, output.dtype, chosen))
                           : nullptr);
      }
    }
  }

  // A view has the shards of what it views.
  c10::ScalarType shard_dtype_of(
      size_t ret,
      c10::ScalarType dtype,
      const PropagationResult& chosen) const {
    const auto& info = op_.returns[ret];
    if (info.kind != ReturnInfo::Kind::View) {
      return shard_dtype_of_result(plan_->mesh, chosen.outputs[ret], dtype);
    }
    for (size_t i = 0; i < plan_->inputs.size(); ++i) {
      const auto& spec = plan_->inputs[i];
      if (static_cast<int32_t>(plan_->slots[i].argument) == info.argument &&
          spec != nullptr && spec->dtype == dtype) {
        return shard_dtype_in(*spec, chosen.inputs[i]);
      }
    }
    return dtype;
  }

  // Whether the local op may refuse values on some ranks and not on others:
  // they have values of their own, or nothing to do with those that all have.
  bool may_throw_on_one_rank(const PropagationResult& chosen) const {
    if (!checks_values()) {
      return false;
    }
    // Ours check every value they are given.
    const bool skips_some = !is_of("tessera");
    for (size_t i = 0; i < tensors_.slots.size(); ++i) {
      const auto& spec = plan_->inputs[i];
      if (spec == nullptr) {
        continue;
      }
      const auto& placements = chosen.inputs[i];
      if ((skips_some && some_shard_is_empty(*spec, placements)) ||
          (is_checked(tensors_.slots[i].argument) &&
           differs_over_ranks(placements, plan_->mesh))) {
        return true;
      }
    }
    return false;
  }

  // Where some rank has an empty shard, and kernels throw where they are
  // called.
  Throws throws_of(const PropagationResult& chosen) const {
    bool some = false;
    for (size_t i = 0; i < plan_->inputs.size(); ++i) {
      const auto& spec = plan_->inputs[i];
      some |= spec != nullptr && spec->numel() > 0 &&
              differs_over_ranks(chosen.inputs[i], plan_->mesh) &&
              some_shard_is_empty(*spec, chosen.inputs[i]);
    }
    if (!some || is_of("tessera") || device_type() != c10::DeviceType::CPU) {
      return {};
    }
    return try_shards(
        {op_, *plan_, args_, tensors_, *call_, chosen, leading_.sizes});
  }

  bool checks_values() const {
    // ATen's kernels for other devices stop the device, and throw nothing.
    if (rule_.checked_arguments.empty() ||
        (is_of("aten") && device_type() != c10::DeviceType::CPU)) {
      return false;
    }
    return !rule_.checks_integers_only ||
           std::all_of(
               plan_->inputs.begin(),
               plan_->inputs.end(),
               [](const SpecPtr& spec) {
                 return spec == nullptr ||
                        c10::isIntegralType(spec->dtype, /*includeBool=*/true);
               });
  }

  bool is_of(std::string_view name) const {
    return op_.handle.operator_name().getNamespace() == name;
  }

  bool is_checked(size_t argument) const {
    const auto& name = call_->schema().arguments()[argument].name();
    const auto& checked = rule_.checked_arguments;
    return std::find(checked.begin(), checked.end(), name) != checked.end();
  }

  bool some_shard_is_empty(const Spec& spec, PlacementsRef placements) const {
    for (int64_t d = 0; d < spec.dim(); ++d) {
      if (evenness(spec.sizes[d], d, plan_->mesh, placements) ==
          Evenness::Any) {
        return true;
      }
    }
    return false;
  }

  c10::DeviceType device_type() const {
    for (const auto& tensor : tensors_.tensors) {
      if (is_dtensor(tensor)) {
        return tensor.device().type();
      }
    }
    return c10::DeviceType::CPU;
  }

  bool on_meta() const { return device_type() == c10::DeviceType::Meta; }

  // A device argument (empty_like, to) makes real shards of meta ones; a result
  // that is no tensor has to be computed.
  bool leaves_meta() const {
    return (call_->has("device") && !call_->is_none("device")) ||
           std::any_of(
               op_.returns.begin(), op_.returns.end(), [](const auto& ret) {
                 return ret.kind == ReturnInfo::Kind::NotATensor;
               });
  }

  void plan_local_arguments(const PropagationResult& chosen) {
    for (const int64_t position : plan_->mesh.local_positions()) {
      const LocalView view{
          plan_->mesh, position, chosen.inputs, chosen.outputs, leading_.sizes};
      auto& local = plan_->local_arguments.emplace_back();
      for (const auto& argument : rule_.local_arguments) {
        const auto index =
            call_->schema().argumentIndexWithName(argument.name).value();
        local.emplace_back(index, argument.value(*call_, view));
      }
    }
  }

  const OpInfo& op_;
  const c10::ArrayRef<c10::IValue> args_;
  const Rule& rule_;
  const CallTensors tensors_;
  std::shared_ptr<OpPlan> plan_;
  std::optional<OpCall> call_;
  InferredOutputs outputs_;
  Sizes written_;
  Leading leading_;
  c10::SmallVector<bool, 8> written_inputs_;
};

// Says of which op a rule has missed a dimension or an element of a list.
template <typename Plan>
auto with_name(const OpInfo& op, const Plan& plan) {
  try {
    return plan();
  } catch (const std::out_of_range& missing) {
    TORCH_CHECK_INDEX(false, "[", op.display_name, "] ", missing.what());
  }
}

}  // namespace

std::shared_ptr<OpPlan> plan_op(
    const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  return with_name(op, [&] {
    auto plan = Planner(op, args).plan(Needs::Nothing);
    return plan != nullptr ? plan : Planner(op, args).plan(Needs::NonEmpty);
  });
}

std::string explain_plan(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  return with_name(op, [&] { return Planner(op, args).explanation(); });
}

}  // namespace tessera::detail
