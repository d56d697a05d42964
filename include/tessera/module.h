// distribute_module: distributes the parameters and buffers of any
// torch::nn::Module over a mesh, in place, and wraps its forward.
//
//   auto net = std::make_shared<Net>();
//   torch::optim::Adam optimizer(net->parameters());  // made before or after
//   auto model = ts::distribute_module(
//       net, mesh, [](auto& name, auto& module, auto& mesh) {
//         if (auto* linear = module.template as<torch::nn::Linear>()) {
//           ts::distribute_(linear->weight, mesh, {ts::Shard(0)});
//         }
//       });
//   auto out = model(ts::distribute_tensor(batch, mesh));
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/export.h"
#include "tessera/mesh.h"

namespace tessera {

// Called once for each submodule, first for the module itself (its name is "").
// Distributes the parameters it chooses to, typically with distribute_.
using PartitionFn = std::function<void(
    const std::string& name,
    torch::nn::Module& module,
    const DeviceMesh& mesh)>;

// Transforms the tensors that go into a module or come out of it: a function
// (module, tensors, mesh) that returns as many tensors as it was given, in the
// same order, or one tensor if it was given one. The older form (tensors, mesh)
// is accepted with a deprecation warning.
class ModuleFn {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Function =
      std::function<Tensors(torch::nn::Module&, Tensors, const DeviceMesh&)>;

  ModuleFn() = default;
  ModuleFn(std::nullptr_t) {}  // NOLINT(google-explicit-constructor)
  template <typename F>
    requires(!std::same_as<std::remove_cvref_t<F>, ModuleFn>)
  ModuleFn(F&& fn);  // NOLINT(google-explicit-constructor)

  explicit operator bool() const { return function_ != nullptr; }
  // Whether the function has the older form.
  bool deprecated() const { return deprecated_; }
  // Requires: a function was given. Throws c10::ValueError, in which `role`
  // names it, if it returns more or fewer tensors than it was given.
  TESSERA_API Tensors operator()(
      const char* role,
      torch::nn::Module& module,
      Tensors tensors,
      const DeviceMesh& mesh) const;

 private:
  Function function_;
  bool deprecated_ = false;
};

// A module whose parameters are distributed. Calling it applies the input
// function, calls the module's forward, and applies the output function. These
// functions get all defined tensors among the arguments or results, including
// those in tuples, optionals and vectors; other values are passed through.
// Copies share the module.
template <typename Module>
class DistributedModule {
 public:
  DistributedModule(
      std::shared_ptr<Module> module,
      DeviceMesh mesh,
      ModuleFn input_fn,
      ModuleFn output_fn)
      : module_(std::move(module)),
        mesh_(std::move(mesh)),
        input_fn_(std::move(input_fn)),
        output_fn_(std::move(output_fn)) {}

  template <typename... Args>
  auto operator()(Args&&... args) const;

  Module* operator->() const { return module_.get(); }
  Module& operator*() const { return *module_; }
  const std::shared_ptr<Module>& ptr() const { return module_; }
  const DeviceMesh& mesh() const { return mesh_; }

 private:
  template <typename Result>
  Result arrange_output(Result result) const;

  std::shared_ptr<Module> module_;
  DeviceMesh mesh_;
  ModuleFn input_fn_;
  ModuleFn output_fn_;
};

// Calls `partition_fn` for every submodule, then replicates every parameter and
// buffer that is still plain. Everything happens in place, so optimizers that
// hold a parameter keep it. Tensors that are already distributed are not
// changed. Communicates (see distribute_tensor).
template <typename Module>
DistributedModule<Module> distribute_module(
    std::shared_ptr<Module> module,
    const DeviceMesh& mesh,
    const PartitionFn& partition_fn = {},
    ModuleFn input_fn = {},
    ModuleFn output_fn = {});

// The same for torch::nn::Linear and other holders.
template <typename Module>
DistributedModule<Module> distribute_module(
    const torch::nn::ModuleHolder<Module>& module,
    const DeviceMesh& mesh,
    const PartitionFn& partition_fn = {},
    ModuleFn input_fn = {},
    ModuleFn output_fn = {});

// The same for a module that the caller holds by value, which must outlive what
// is returned.
template <std::derived_from<torch::nn::Module> Module>
DistributedModule<Module> distribute_module(
    Module& module,
    const DeviceMesh& mesh,
    const PartitionFn& partition_fn = {},
    ModuleFn input_fn = {},
    ModuleFn output_fn = {});

// The parameters and buffers of a module as plain tensors, by name: copies of
// what the module would hold on one device. Every rank calls it. Communicates.
TESSERA_API std::map<std::string, at::Tensor> full_state_dict(
    const torch::nn::Module& module);

// Copies values into the parameters and buffers of a module, by name. The
// layouts of the module do not change. A plain value is distributed (that of
// the first rank of each mesh dimension); a distributed value is redistributed,
// or gathered for a plain module. Every rank calls it. Communicates. Throws
// c10::ValueError, before anything is written, if a shape differs or, with
// `strict`, a name is missing or unknown.
TESSERA_API void load_state_dict(
    torch::nn::Module& module,
    const std::map<std::string, at::Tensor>& state,
    bool strict = true);

}  // namespace tessera

#include "tessera/module_inl.h"
