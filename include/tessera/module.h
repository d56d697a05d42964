// distribute_module: lays the parameters and buffers of any torch::nn::Module
// out over a mesh, in place, and wraps its forward.
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

// Called for every submodule once, the module itself first (its name is "");
// lays out the parameters it cares for, typically with distribute_.
using PartitionFn = std::function<void(
    const std::string& name,
    torch::nn::Module& module,
    const DeviceMesh& mesh)>;

// What becomes of the tensors that go into a module or come out of it: a
// function (module, tensors, mesh) that returns as many tensors as it was
// given, in their order; a single one may be returned as it is. The older form
// (tensors, mesh) is accepted and warned about.
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

// A module whose parameters are distributed. Calling it calls the module's
// forward, between the input and the output function if there are any. These
// see the tensors among the arguments and results, those in tuples, optionals
// and vectors included and undefined ones left out; anything else goes straight
// through. Copies share the module.
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

// Calls `partition_fn` for every submodule, then turns every parameter and
// buffer that is still plain into a replicated one, in place: members,
// registries and optimizers that hold it go on with it. What is distributed
// already stays as it is. Communicates (see distribute_tensor).
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

}  // namespace tessera

#include "tessera/module_inl.h"
