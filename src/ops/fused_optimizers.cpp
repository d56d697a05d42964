// The fused optimizer steps: each tensor of each list is stepped by itself, so
// every rank steps its shards. Boxed, since the ops differ only in their
// numbers.
#include <ATen/core/LegacyTypeDispatch.h>

#include "comm/comm_event.h"
#include "dispatch/autograd.h"
#include "dispatch/tensor.h"
#include "ops/all_ops.h"

namespace tessera::detail {
namespace {

// A step would read of a plain tensor the elements of another shard. Step
// counts are numbers, which every rank takes as they are.
void check_alike(
    const at::Tensor& tensor,
    const at::Tensor& parameter,
    const std::string& argument,
    const char* op) {
  const bool distributed = is_dtensor(parameter);
  TORCH_CHECK(
      !tensor.defined() || is_dtensor(tensor) == distributed ||
          (distributed && tensor.dim() == 0),
      "[",
      op,
      "] argument '",
      argument,
      "' holds a ",
      distributed ? "plain" : "distributed",
      " tensor of shape ",
      tensor.sizes(),
      " for a parameter that is ",
      distributed ? "distributed: convert it with distribute_tensor"
                  : "plain: convert it with full_tensor");
  // The kernels read as many elements as the parameter has.
  TORCH_CHECK(
      !tensor.defined() || argument == "state_steps" ||
          tensor.sizes() == parameter.sizes(),
      "[",
      op,
      "] argument '",
      argument,
      "' holds a tensor of shape ",
      tensor.sizes(),
      " for a parameter of shape ",
      parameter.sizes());
}

// The shards of one list's element, in the layout of the parameter. Empty for a
// plain one.
Shards shards_like(
    const at::Tensor& tensor,
    const at::Tensor& parameter,
    bool keeps_writes,
    const char* op) {
  if (!tensor.defined() || !is_dtensor(tensor)) {
    return {};
  }
  if (keeps_writes) {
    begin_write(tensor, op);
  }
  const Spec& wanted = *distributed_meta(parameter).spec;
  const Spec& given = *distributed_meta(tensor).spec;
  // Step counts are numbers, which every rank has whole.
  const Placements placements =
      tensor.dim() == 0 ? Placements(wanted.mesh.ndim(), Replicate())
                        : wanted.placements;
  const bool alike =
      given.mesh == wanted.mesh && given.placements == placements;
  TORCH_CHECK(
      alike || (!keeps_writes && given.mesh == wanted.mesh),
      "[",
      op,
      "] the state of a parameter laid out as ",
      wanted.str(),
      " is laid out as ",
      given.str(),
      ", and the step writes into it: redistribute it to the parameter's "
      "layout first");
  const auto moved = alike ? tensor : redistribute(tensor, placements, op);
  return current_shards(moved);
}

// What one argument is for one parameter, and for one of its shards.
struct StepArgument {
  c10::IValue whole;
  Shards shards;

  c10::IValue at(size_t shard) const {
    if (shards.empty()) {
      return whole;
    }
    return whole.isTensor() ? c10::IValue(shards[shard])
                            : c10::IValue(std::vector{shards[shard]});
  }
};

StepArgument argument_of(
    const c10::IValue& value,
    size_t index,
    const at::Tensor& parameter,
    const c10::Argument& argument,
    const char* op) {
  if (value.isTensor()) {
    // A learning rate or a scale: a number, the same on every rank.
    const auto& number = value.toTensor();
    if (!number.defined() || !is_dtensor(number)) {
      return {value, {}};
    }
    const auto& mesh = distributed_meta(number).spec->mesh;
    const auto whole =
        redistribute(number, Placements(mesh.ndim(), Replicate()), op);
    return {value, current_shards(whole)};
  }
  if (!value.isTensorList() || value.toTensorVector().empty()) {
    return {value, {}};
  }
  const auto list = value.toTensorVector();
  TORCH_CHECK(
      index < list.size(),
      "[",
      op,
      "] expected an element of argument '",
      argument.name(),
      "' for each parameter, but it has ",
      list.size());
  const at::Tensor& element = list[index];
  check_alike(element, parameter, argument.name(), op);
  StepArgument result{c10::IValue(std::vector{element}), {}};
  if (is_dtensor(parameter)) {
    // A gradient is written only to unscale it, for nobody to read.
    const auto* alias = argument.alias_info();
    const bool keeps_writes =
        alias != nullptr && alias->isWrite() && argument.name() != "grads";
    result.shards = shards_like(element, parameter, keeps_writes, op);
  }
  return result;
}

// Puts what the step wrote of parameter number `index` into its base, where it
// is a copied view.
void end_writes(
    const c10::FunctionSchema& schema,
    const torch::jit::Stack& args,
    size_t index) {
  for (size_t a = 0; a < args.size(); ++a) {
    const auto* alias = schema.arguments()[a].alias_info();
    if (alias != nullptr && alias->isWrite() && args[a].isTensorList() &&
        schema.arguments()[a].name() != "grads") {
      const auto list = args[a].toListRef();
      if (index < list.size() && is_dtensor(list[index].toTensor())) {
        end_write(list[index].toTensor(), schema.name());
      }
    }
  }
}

// Steps parameter after parameter, shard after shard.
void fused_step(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  const size_t count = schema.arguments().size();
  const auto args = torch::jit::pop(*stack, count);
  const auto parameters = args[0].toTensorVector();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const CommCauseGuard cause(name);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& parameter = parameters[i];
    const bool distributed = is_dtensor(parameter);
    std::optional<CommCauseGuard> layout;
    if (distributed) {
      layout.emplace(name, distributed_meta(parameter).spec);
      begin_write(parameter, name);
    }
    std::vector<StepArgument> step;
    for (size_t a = 0; a < count; ++a) {
      step.push_back(argument_of(
          args[a], i, parameter, schema.arguments()[a], name.c_str()));
    }
    const size_t here =
        distributed ? distributed_meta(parameter).shard_count() : 1;
    for (size_t s = 0; s < here; ++s) {
      torch::jit::Stack local;
      for (const auto& argument : step) {
        local.push_back(argument.at(s));
      }
      if (local[0].toTensorVector()[0].numel() > 0) {
        op.callBoxed(&local);
      }
    }
    end_writes(schema, args, i);
  }
}

}  // namespace

void register_fused_optimizers(OpRegistry& ops) {
  for (const char* name :
       {"_fused_adam_",
        "_fused_adam_.tensor_lr",
        "_fused_adamw_",
        "_fused_adamw_.tensor_lr",
        "_fused_sgd_",
        "_fused_sgd_.tensor_lr",
        "_fused_adagrad_"}) {
    ops.own_kernel(
        name, torch::CppFunction::makeFromBoxedFunction<&fused_step>());
  }
}

}  // namespace tessera::detail
