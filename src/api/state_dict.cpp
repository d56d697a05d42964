// Weights by name, plain or distributed, into a module and out of it.
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "tessera/distribute.h"
#include "tessera/module.h"

namespace tessera {

namespace {

constexpr const char* kLoadStateDict = "[load_state_dict] ";

std::map<std::string, at::Tensor> tensors_by_name(
    const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  const auto add = [&](const auto& named) {
    for (const auto& item : named) {
      if (item.value().defined()) {
        tensors.emplace(item.key(), item.value());
      }
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return tensors;
}

std::string quoted_names(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) {
    text += (text.empty() ? "'" : ", '") + name + "'";
  }
  return text;
}

// Before anything is written.
void check_state_names(
    const std::map<std::string, at::Tensor>& own,
    const std::map<std::string, at::Tensor>& state) {
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  for (const auto& [name, tensor] : own) {
    if (state.count(name) == 0) missing.push_back(name);
  }
  for (const auto& [name, tensor] : state) {
    if (own.count(name) == 0) unexpected.push_back(name);
  }
  TORCH_CHECK_VALUE(
      missing.empty() && unexpected.empty(),
      kLoadStateDict,
      "the names do not fit the module: missing are ",
      missing.empty() ? "none" : quoted_names(missing),
      ", unexpected are ",
      unexpected.empty() ? "none" : quoted_names(unexpected),
      "; strict = false takes what fits");
}

void check_state_shape(
    const std::string& name, const at::Tensor& own, const at::Tensor& value) {
  TORCH_CHECK_VALUE(
      value.defined(),
      kLoadStateDict,
      "the value of '",
      name,
      "' is undefined");
  TORCH_CHECK_VALUE(
      own.sizes() == value.sizes(),
      kLoadStateDict,
      "'",
      name,
      "' has shape ",
      own.sizes(),
      " in the module, but the value has shape ",
      value.sizes());
}

// The value as the module's tensor holds it: distributed or plain.
at::Tensor value_for(const at::Tensor& own, const at::Tensor& value) {
  if (is_dtensor(own) && !is_dtensor(value)) {
    const DTensor layout(own);
    return distribute_tensor(
        value.detach(), layout.mesh(), layout.placements());
  }
  return !is_dtensor(own) && is_dtensor(value) ? DTensor(value).full_tensor()
                                               : value;
}

}  // namespace

std::map<std::string, at::Tensor> full_state_dict(
    const torch::nn::Module& module) {
  const c10::NoGradGuard no_grad;
  auto state = tensors_by_name(module);
  for (auto& [name, tensor] : state) {
    // Of a replicated tensor the whole is a shard: a copy, too.
    tensor =
        (is_dtensor(tensor) ? DTensor(tensor).full_tensor() : tensor).clone();
  }
  return state;
}

void load_state_dict(
    torch::nn::Module& module,
    const std::map<std::string, at::Tensor>& state,
    bool strict) {
  const c10::NoGradGuard no_grad;
  const auto own = tensors_by_name(module);
  if (strict) {
    check_state_names(own, state);
  }
  for (const auto& [name, value] : state) {
    const auto found = own.find(name);
    if (found != own.end()) check_state_shape(name, found->second, value);
  }
  for (const auto& [name, value] : state) {
    const auto found = own.find(name);
    if (found != own.end()) {
      found->second.copy_(value_for(found->second, value));
    }
  }
}

}  // namespace tessera
