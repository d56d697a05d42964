#include "tessera/module.h"

#include <c10/util/Exception.h>

#include <unordered_set>

#include "tessera/distribute.h"

namespace tessera {

namespace {

struct NamedModule {
  std::string name;
  torch::nn::Module* module;
};

// The module and all below it, each once however often it is shared. Walks the
// children itself, since Module::named_modules asks for a shared_ptr to the
// root.
void collect(
    const std::string& name,
    torch::nn::Module& module,
    std::unordered_set<torch::nn::Module*>& seen,
    std::vector<NamedModule>& found) {
  if (!seen.insert(&module).second) {
    return;
  }
  found.push_back({name, &module});
  for (const auto& child : module.named_children()) {
    if (child.value() != nullptr) {
      collect(
          name.empty() ? child.key() : name + "." + child.key(),
          *child.value(),
          seen,
          found);
    }
  }
}

void replicate_plain(torch::nn::Module& module, const DeviceMesh& mesh) {
  const auto replicate = [&](const auto& tensors) {
    for (const auto& tensor : tensors) {
      if (tensor.defined() && !is_dtensor(tensor)) {
        distribute_(tensor, mesh);
      }
    }
  };
  replicate(module.parameters(/*recurse=*/false));
  replicate(module.buffers(/*recurse=*/false));
}

void warn_if_deprecated(const ModuleFn& fn, const char* role) {
  if (!fn.deprecated()) {
    return;
  }
  TORCH_WARN_DEPRECATION(
      "[distribute_module] Deprecating ",
      role,
      " that takes two arguments (tensors, mesh): give it three, (module, "
      "tensors, mesh)");
}

}  // namespace

ModuleFn::Tensors ModuleFn::operator()(
    const char* role,
    torch::nn::Module& module,
    Tensors tensors,
    const DeviceMesh& mesh) const {
  const size_t given = tensors.size();
  auto result = function_(module, std::move(tensors), mesh);
  TORCH_CHECK_VALUE(
      result.size() == given,
      "[distribute_module] ",
      role,
      " of ",
      module.name(),
      " was given ",
      given,
      " tensors and returned ",
      result.size(),
      ": it must return one for each, in their order");
  return result;
}

void detail::prepare_module(
    torch::nn::Module& module,
    const DeviceMesh& mesh,
    const PartitionFn& partition_fn,
    const ModuleFn& input_fn,
    const ModuleFn& output_fn) {
  warn_if_deprecated(input_fn, "an input_fn");
  warn_if_deprecated(output_fn, "an output_fn");
  std::unordered_set<torch::nn::Module*> seen;
  std::vector<NamedModule> modules;
  collect("", module, seen, modules);
  // All partitions come first: a tied parameter is laid out by whichever module
  // cares for it, not replicated by the first that holds it.
  if (partition_fn) {
    for (const auto& [name, submodule] : modules) {
      partition_fn(name, *submodule, mesh);
    }
  }
  for (const auto& [name, submodule] : modules) {
    replicate_plain(*submodule, mesh);
  }
}

}  // namespace tessera
