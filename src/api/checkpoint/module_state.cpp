// What users call on modules and optimizers.
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <utility>
#include <vector>

#include "api/checkpoint/latest.h"
#include "api/checkpoint/optimizer_state.h"
#include "tessera/checkpoint.h"

namespace tessera {

namespace {

using detail::NamesOfParameters;

TensorMap tensors_of(
    const torch::nn::Module& module, const std::string& prefix) {
  TensorMap tensors;
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined()) tensors[prefix + item.key()] = item.value();
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) tensors[prefix + item.key()] = item.value();
  }
  return tensors;
}

NamesOfParameters names_of(const torch::nn::Module& module) {
  NamesOfParameters names;
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined()) {
      names[item.value().unsafeGetTensorImpl()] = item.key();
    }
  }
  return names;
}

struct ModuleState {
  TensorMap tensors;
  SaveOptions options;
};

ModuleState state_to_save(
    const torch::nn::Module& module,
    const Optimizers& optimizers,
    SaveOptions options) {
  ModuleState state{tensors_of(module, options.prefix), std::move(options)};
  const auto names = names_of(module);
  for (size_t i = 0; i < optimizers.size(); ++i) {
    detail::add_optimizer_state(
        *optimizers[i],
        detail::optimizer_prefix(i),
        names,
        state.tensors,
        state.options.values);
  }
  return state;
}

// Tensors that were saved for the module and that it does not have.
void check_nothing_left(
    const detail::Source& source,
    const TensorMap& tensors,
    const std::string& prefix) {
  for (const auto& [name, saved] : source.manifest().tensors) {
    if (!name.starts_with(prefix) || tensors.contains(name)) continue;
    if (name.starts_with("optimizer")) continue;
    TORCH_CHECK_VALUE(
        false,
        "[load] ",
        source.path(),
        " holds '",
        name,
        "', which the module does not have; set strict to false to leave it "
        "out");
  }
}

// Whether anything was saved of the optimizer with this prefix.
bool holds_optimizer(const detail::Source& source, const std::string& prefix) {
  const auto among = [&](const auto& saved) {
    const auto first = saved.lower_bound(prefix);
    return first != saved.end() && first->first.starts_with(prefix);
  };
  return among(source.manifest().tensors) || among(source.manifest().values);
}

detail::RequestFor request_for(
    torch::nn::Module& module,
    const Optimizers& optimizers,
    const LoadOptions& options) {
  return [&module, optimizers, options](const detail::Source& source) {
    detail::LoadRequest request{tensors_of(module, options.prefix), {}};
    if (options.strict) {
      check_nothing_left(source, request.tensors, options.prefix);
    } else {
      std::erase_if(request.tensors, [&](const auto& item) {
        return !source.manifest().tensors.contains(item.first);
      });
    }
    const auto names = names_of(module);
    std::vector<std::function<void()>> after;
    for (size_t i = 0; i < optimizers.size(); ++i) {
      const auto prefix = detail::optimizer_prefix(i);
      if (!holds_optimizer(source, prefix)) {
        TORCH_CHECK_VALUE(
            !options.strict,
            "[load] ",
            source.path(),
            " does not hold '",
            prefix,
            "', the state of optimizer ",
            i,
            "; set strict to false to leave it as it is");
        continue;
      }
      after.push_back(detail::prepare_optimizer_state(
          *optimizers[i], prefix, names, source, request.tensors));
    }
    request.loaded = [after] {
      for (const auto& step : after) step();
    };
    return request;
  };
}

}  // namespace

std::string save(
    const std::string& root,
    const torch::nn::Module& module,
    const Optimizers& optimizers,
    const SaveOptions& options) {
  const auto state = state_to_save(module, optimizers, options);
  return save(root, state.tensors, state.options);
}

PendingSave save_async(
    const std::string& root,
    const torch::nn::Module& module,
    const Optimizers& optimizers,
    const SaveOptions& options) {
  const auto state = state_to_save(module, optimizers, options);
  return save_async(root, state.tensors, state.options);
}

CheckpointInfo load(
    const std::string& path,
    torch::nn::Module& module,
    const Optimizers& optimizers,
    const LoadOptions& options) {
  return detail::load_together(
      path, options, request_for(module, optimizers, options));
}

std::optional<CheckpointInfo> load_latest(
    const std::string& root,
    torch::nn::Module& module,
    const Optimizers& optimizers,
    const LoadOptions& options) {
  return detail::load_latest_together(
      root, options, request_for(module, optimizers, options));
}

}  // namespace tessera
