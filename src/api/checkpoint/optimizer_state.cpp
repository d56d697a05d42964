#include "api/checkpoint/optimizer_state.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <utility>
#include <vector>

#include "dispatch/tensor.h"

namespace tessera::detail {

namespace {

namespace optim = torch::optim;

// What the state of a parameter consists of.
struct StateFields {
  std::vector<std::pair<const char*, at::Tensor*>> tensors;
  int64_t* step = nullptr;
};

template <typename State>
StateFields adam_fields(State& state) {
  return {
      {{"exp_avg", &state.exp_avg()},
       {"exp_avg_sq", &state.exp_avg_sq()},
       {"max_exp_avg_sq", &state.max_exp_avg_sq()}},
      &state.step()};
}

StateFields fields_of(optim::OptimizerParamState& state) {
  if (auto* adam = dynamic_cast<optim::AdamParamState*>(&state)) {
    return adam_fields(*adam);
  }
  if (auto* adamw = dynamic_cast<optim::AdamWParamState*>(&state)) {
    return adam_fields(*adamw);
  }
  if (auto* adagrad = dynamic_cast<optim::AdagradParamState*>(&state)) {
    return {{{"sum", &adagrad->sum()}}, &adagrad->step()};
  }
  if (auto* rms = dynamic_cast<optim::RMSpropParamState*>(&state)) {
    return {
        {{"square_avg", &rms->square_avg()},
         {"momentum_buffer", &rms->momentum_buffer()},
         {"grad_avg", &rms->grad_avg()}},
        &rms->step()};
  }
  if (auto* sgd = dynamic_cast<optim::SGDParamState*>(&state)) {
    return {{{"momentum_buffer", &sgd->momentum_buffer()}}, nullptr};
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "[save] the state of this optimizer is not known: expected Adam, AdamW, "
      "Adagrad, RMSprop or SGD; save its tensors by name instead");
}

std::unique_ptr<optim::OptimizerParamState> new_state(
    const optim::Optimizer& optimizer) {
  if (dynamic_cast<const optim::Adam*>(&optimizer) != nullptr) {
    return std::make_unique<optim::AdamParamState>();
  }
  if (dynamic_cast<const optim::AdamW*>(&optimizer) != nullptr) {
    return std::make_unique<optim::AdamWParamState>();
  }
  if (dynamic_cast<const optim::Adagrad*>(&optimizer) != nullptr) {
    return std::make_unique<optim::AdagradParamState>();
  }
  if (dynamic_cast<const optim::RMSprop*>(&optimizer) != nullptr) {
    return std::make_unique<optim::RMSpropParamState>();
  }
  if (dynamic_cast<const optim::SGD*>(&optimizer) != nullptr) {
    return std::make_unique<optim::SGDParamState>();
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "[load] the state of this optimizer is not known: expected Adam, AdamW, "
      "Adagrad, RMSprop or SGD; load its tensors by name instead");
}

std::string groups_name(const std::string& prefix) {
  return prefix + "param_groups";
}

// Before the names of the fields of a parameter's state.
std::string state_name(
    const std::string& prefix,
    const at::Tensor& parameter,
    const NamesOfParameters& names) {
  return c10::str(prefix, "state.", parameter_name(parameter, names), ".");
}

// A tensor of the parameter's layout, where there is none that has it.
void fit(at::Tensor& field, const at::Tensor& parameter) {
  if (!field.defined() || is_dtensor(field) != is_dtensor(parameter)) {
    field = at::zeros_like(parameter.detach());
  }
}

}  // namespace

std::string optimizer_prefix(size_t index) {
  if (index == 0) return "optimizer.";
  return "optimizer_" + std::to_string(index) + ".";
}

void add_optimizer_state(
    optim::Optimizer& optimizer,
    const std::string& prefix,
    const NamesOfParameters& names,
    TensorMap& tensors,
    std::map<std::string, std::string>& values) {
  values[groups_name(prefix)] = param_groups_text(optimizer, names);
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto begin = state_name(prefix, parameter, names);
      const auto found =
          optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      const auto fields = fields_of(*found->second);
      for (const auto& [field, tensor] : fields.tensors) {
        if (tensor->defined()) tensors[begin + field] = *tensor;
      }
      if (fields.step != nullptr) {
        tensors[begin + "step"] =
            at::scalar_tensor(*fields.step, at::TensorOptions(at::kLong));
      }
    }
  }
}

std::function<void()> prepare_optimizer_state(
    optim::Optimizer& optimizer,
    const std::string& prefix,
    const NamesOfParameters& names,
    const Source& source,
    TensorMap& tensors) {
  const c10::NoGradGuard no_grad;
  const auto& saved = source.manifest().tensors;
  std::vector<std::pair<int64_t*, at::Tensor>> steps;
  for (auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      void* const key = parameter.unsafeGetTensorImpl();
      const auto begin = state_name(prefix, parameter, names);
      const auto first = saved.lower_bound(begin);
      if (first == saved.end() || !first->first.starts_with(begin)) {
        optimizer.state().erase(key);
        continue;
      }
      auto& state = optimizer.state()[key];
      if (!state) state = new_state(optimizer);
      const auto fields = fields_of(*state);
      for (const auto& [field, tensor] : fields.tensors) {
        if (!saved.contains(begin + field)) continue;
        fit(*tensor, parameter);
        tensors[begin + field] = *tensor;
      }
      if (fields.step != nullptr && saved.contains(begin + "step")) {
        const auto step = at::scalar_tensor(0, at::TensorOptions(at::kLong));
        tensors[begin + "step"] = step;
        steps.emplace_back(fields.step, step);
      }
    }
  }
  const auto& values = source.manifest().values;
  const auto groups = values.find(groups_name(prefix));
  return [&optimizer,
          names,
          steps,
          text = groups == values.end() ? "" : groups->second,
          where = "[load] '" + groups_name(prefix) + "' of " + source.path()] {
    for (const auto& [step, value] : steps) *step = value.item<int64_t>();
    if (!text.empty()) restore_param_groups(optimizer, names, text, where);
  };
}

}  // namespace tessera::detail
