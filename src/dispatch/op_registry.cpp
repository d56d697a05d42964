#include "dispatch/op_registry.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include <array>
#include <memory>
#include <string_view>

#include "dispatch/fallback.h"
#include "dispatch/kernel.h"
#include "dispatch/op_info.h"
#include "dispatch/typed_kernel.h"

namespace tessera::detail {

namespace {

using Key = c10::DispatchKey;

constexpr auto kDistributed = Key::PrivateUse3;
// Distributed tensors with sparse shards.
constexpr auto kSparse = Key::SparsePrivateUse3;

torch::Library implementations(const char* name, Key key) {
  return {torch::Library::IMPL, name, key, __FILE__, __LINE__};
}

// Ops whose composite explicit kernel only calls other ops, one tensor at a
// time: it serves distributed tensors as it is.
bool leaves_to_composite(const c10::OperatorName& name) {
  constexpr std::string_view kForeach = "aten::_foreach_";
  return std::string_view(name.name).substr(0, kForeach.size()) == kForeach;
}

// Composite implicit ops decompose above us into ops that come here. Where
// there is a kernel besides that allocates its result, as for silu_backward,
// that one would win once autograd is passed over, as in inference mode.
bool decomposes(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(Key::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(
             Key::CompositeExplicitAutogradNonFunctional);
}

bool needs_boxed_kernel(const c10::OperatorHandle& op) {
  return op.hasSchema() && !op.hasKernelForDispatchKey(kDistributed) &&
         !decomposes(op) && !leaves_to_composite(op.operator_name());
}

bool is_composite_explicit(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(Key::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(
             Key::CompositeExplicitAutogradNonFunctional);
}

// Calls `use` with every op of ATen.
template <class F>
void for_each_aten_op(F use) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (name.getNamespace() == "aten" && op.has_value()) {
      use(*op);
    }
  }
}

}  // namespace

const char* to_string(OpKind kind) {
  static constexpr std::array kNames{
      "rule", "composition", "own kernel", "gathered inputs", "refused"};
  return kNames.at(static_cast<size_t>(kind));
}

void run_as_dense(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(kDistributed), stack);
}

OpRegistry& OpRegistry::instance() {
  // Leaked: kernels must outlive every static that may still run an op.
  static auto* const registry = new OpRegistry;
  return *registry;
}

OpRegistry::OpRegistry()
    : tessera_(
          torch::Library::DEF, "tessera", std::nullopt, __FILE__, __LINE__),
      tessera_distributed_(implementations("tessera", kDistributed)),
      tessera_autograd_(implementations("tessera", Key::Autograd)),
      aten_(implementations("aten", kDistributed)),
      aten_autograd_(implementations("aten", Key::AutogradPrivateUse3)),
      sparse_aten_(implementations("aten", kSparse)),
      fallback_(implementations("_", kDistributed)),
      sparse_fallback_(implementations("_", kSparse)),
      autograd_fallback_(implementations("_", Key::AutogradPrivateUse3)) {}

void OpRegistry::set_kind(const char* op, OpKind kind) {
  kinds_[torch::jit::parseName(std::string("aten::") + op)] = kind;
}

void OpRegistry::define(
    const char* name,
    const char* schema,
    torch::CppFunction on_data,
    torch::CppFunction on_meta,
    std::optional<torch::CppFunction> gradient) {
  tessera_.def(schema);
  tessera_.impl(
      name,
      torch::dispatch(Key::CompositeExplicitAutograd, std::move(on_data)));
  tessera_.impl(name, torch::dispatch(Key::Meta, std::move(on_meta)));
  if (gradient.has_value()) {
    tessera_autograd_.impl(name, std::move(*gradient));
  }
  serve_by_rule(name);
}

void OpRegistry::serve_by_rule(const char* name) {
  const auto full = std::string("tessera::") + name;
  tessera_distributed_.impl(name, boxed_kernel(full.c_str()));
}

void OpRegistry::explained_by(const char* op, ExplainOp explain) {
  explanations_[std::string("aten::") + op] = explain;
}

ExplainOp OpRegistry::explanation(const std::string& name) const {
  const auto found = explanations_.find(name);
  return found == explanations_.end() ? nullptr : found->second;
}

OpKind OpRegistry::kind(const c10::OperatorHandle& op) const {
  const auto& name = op.operator_name();
  const auto found = kinds_.find(name);
  if (found != kinds_.end() && found->second != OpKind::kRule) {
    return found->second;
  }
  // Ops of others have no kernel of ours but the fallback.
  if (found == kinds_.end() && name.getNamespace() == "aten") {
    return OpKind::kComposition;
  }
  const OpInfo info(op);
  return info.rule() != nullptr         ? OpKind::kRule
         : is_never_gathered(info.name) ? OpKind::kRefused
                                        : OpKind::kGathered;
}

// By name although there is a fallback: kernels that are composite explicit
// would win over it and reach for storage. It also gives every op a state of
// its own.
void OpRegistry::register_boxed_kernels() {
  for_each_aten_op([&](const c10::OperatorHandle& op) {
    if (needs_boxed_kernel(op)) {
      kinds_[op.operator_name()] = OpKind::kRule;
      auto typed = typed_kernel(op);
      aten_.impl(
          c10::toString(op.operator_name()).c_str(),
          typed.has_value() ? std::move(*typed)
                            : torch::CppFunction::makeFromBoxedFunctor(
                                  std::make_unique<OpKernel>(op)));
    }
  });
}

// Sparse ones do what dense ones do but for what is written by hand. By name
// where a composite explicit kernel would win over the fallback.
void OpRegistry::register_sparse_kernels() {
  for_each_aten_op([&](const c10::OperatorHandle& op) {
    if (is_composite_explicit(op) && op.hasKernelForDispatchKey(kDistributed) &&
        !op.hasKernelForDispatchKey(kSparse)) {
      sparse_aten_.impl(
          c10::toString(op.operator_name()).c_str(),
          torch::CppFunction::makeFromBoxedFunction<&run_as_dense>());
    }
  });
}

void OpRegistry::register_the_rest() {
  register_boxed_kernels();
  fallback_.fallback(
      torch::CppFunction::makeFromBoxedFunction<&fallback_kernel>());
  register_sparse_kernels();
  sparse_fallback_.fallback(
      torch::CppFunction::makeFromBoxedFunction<&run_as_dense>());
  // Ops of users' own that have no autograd formula, as on other backends.
  autograd_fallback_.fallback(
      torch::autograd::basicAutogradNotImplementedFallback());
}

void register_all_ops(std::initializer_list<OpFamily> families) {
  auto& registry = OpRegistry::instance();
  for (const auto& family : families) {
    family(registry);
  }
  registry.register_the_rest();
}

}  // namespace tessera::detail
