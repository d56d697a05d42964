// Every registration with the dispatcher, in order: what we write by hand, then
// the boxed kernel for the rest.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <memory>
#include <unordered_set>

#include "dispatch/amp.h"
#include "dispatch/bag_ops.h"
#include "dispatch/composite_writes.h"
#include "dispatch/composites.h"
#include "dispatch/decompose.h"
#include "dispatch/decompose_weight_norm.h"
#include "dispatch/embedding.h"
#include "dispatch/explain.h"
#include "dispatch/gradient_layout.h"
#include "dispatch/handwritten.h"
#include "dispatch/kernel.h"
#include "dispatch/part_ops.h"
#include "dispatch/sparse.h"

namespace tessera::detail {

namespace {

constexpr auto kDistributed = c10::DispatchKey::PrivateUse3;
// Distributed tensors with sparse shards.
constexpr auto kSparse = c10::DispatchKey::SparsePrivateUse3;

bool needs_boxed_kernel(const c10::OperatorHandle& op) {
  using Key = c10::DispatchKey;
  // Composite implicit ops decompose above us into ops that come here. Where
  // there is a kernel besides that allocates its result, as for silu_backward,
  // that one would win once autograd is passed over, as in inference mode.
  const bool decomposes =
      op.hasKernelForDispatchKey(Key::CompositeImplicitAutograd) &&
      !op.hasKernelForDispatchKey(Key::CompositeExplicitAutogradNonFunctional);
  return op.hasSchema() && !op.hasKernelForDispatchKey(kDistributed) &&
         !decomposes && !leaves_to_composite(op.operator_name());
}

// What was registered below; see runs_by_rule.
std::unordered_set<c10::OperatorName>& boxed_ops() {
  static auto* const names = new std::unordered_set<c10::OperatorName>;
  return *names;
}

// Registered by name although there is a fallback: kernels that are composite
// explicit would win over it and reach for storage. It also gives every op a
// state of its own.
void register_boxed_kernels(torch::Library& aten) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten") {
      continue;
    }
    const auto op = dispatcher.findOp(name);
    if (op.has_value() && needs_boxed_kernel(*op)) {
      boxed_ops().insert(name);
      aten.impl(
          c10::toString(name).c_str(),
          torch::CppFunction::makeFromBoxedFunctor(
              std::make_unique<OpKernel>(*op)));
    }
  }
}

bool is_composite_explicit(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(
             c10::DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(
             c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

// Sparse ones do what dense ones do but for what is written by hand. By name
// where a composite explicit kernel would win over the fallback.
void register_sparse_kernels(torch::Library& aten) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten") {
      continue;
    }
    const auto op = dispatcher.findOp(name);
    if (op.has_value() && is_composite_explicit(*op) &&
        op->hasKernelForDispatchKey(kDistributed) &&
        !op->hasKernelForDispatchKey(kSparse)) {
      aten.impl(
          c10::toString(name).c_str(),
          torch::CppFunction::makeFromBoxedFunction<&run_as_dense>());
    }
  }
}

struct Registration {
  torch::Library tessera{
      torch::Library::DEF, "tessera", std::nullopt, __FILE__, __LINE__};
  torch::Library tessera_distributed{
      torch::Library::IMPL, "tessera", kDistributed, __FILE__, __LINE__};
  torch::Library tessera_autograd{
      torch::Library::IMPL,
      "tessera",
      c10::DispatchKey::Autograd,
      __FILE__,
      __LINE__};
  torch::Library aten{
      torch::Library::IMPL, "aten", kDistributed, __FILE__, __LINE__};
  torch::Library fallback{
      torch::Library::IMPL, "_", kDistributed, __FILE__, __LINE__};

  torch::Library sparse_aten{
      torch::Library::IMPL, "aten", kSparse, __FILE__, __LINE__};
  torch::Library sparse_fallback{
      torch::Library::IMPL, "_", kSparse, __FILE__, __LINE__};

  torch::Library aten_autograd{
      torch::Library::IMPL,
      "aten",
      c10::DispatchKey::AutogradPrivateUse3,
      __FILE__,
      __LINE__};
  torch::Library autograd_fallback{
      torch::Library::IMPL,
      "_",
      c10::DispatchKey::AutogradPrivateUse3,
      __FILE__,
      __LINE__};

  Registration() {
    define_part_ops(tessera);
    define_bag_ops(tessera);
    register_part_ops(tessera_distributed);
    register_bag_ops(tessera_distributed);
    register_part_gradients(tessera_autograd);
    register_bag_gradients(tessera_autograd);
    register_embedding(aten);
    register_embedding_gradients(aten_autograd);
    register_gradient_layouts(aten_autograd);
    register_handwritten(aten);
    register_set_data(aten_autograd);
    register_composite_writes(aten);
    register_composite_writes(aten_autograd);
    register_decompositions(aten);
    register_amp(aten);
    register_weight_norm(aten);
    register_composites(aten, aten_autograd);
    register_boxed_kernels(aten);
    fallback.fallback(
        torch::CppFunction::makeFromBoxedFunction<&fallback_kernel>());
    register_sparse(sparse_aten);
    register_sparse_kernels(sparse_aten);
    sparse_fallback.fallback(
        torch::CppFunction::makeFromBoxedFunction<&run_as_dense>());
    // Ops of users' own that have no autograd formula, as on other backends.
    autograd_fallback.fallback(
        torch::autograd::basicAutogradNotImplementedFallback());
  }
};

// Leaked: kernels must outlive every static that may still run an op.
[[maybe_unused]] const auto* const registration = new Registration;

}  // namespace

bool runs_by_rule(const c10::OperatorName& name) {
  // Ops of others have no kernel of ours but the fallback.
  return name.getNamespace() != "aten" || boxed_ops().count(name) != 0;
}

}  // namespace tessera::detail
