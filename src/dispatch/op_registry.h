// What serves each op on distributed tensors. Families of ops (ops/,
// embedding/) register their kernels here; what they leave is served by the
// boxed kernel. debug::explain and the table of ops read it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace tessera::detail {

enum class OpKind {
  kRule,         // the boxed kernel, by a row of its rule
  kComposition,  // other ops, each of which is served by itself
  kOwnKernel,    // a kernel of the library's own
  kGathered,     // no rule: runs on gathered inputs
  kRefused,      // raises
};

const char* to_string(OpKind kind);

// How a call with these arguments would be carried out, as text.
using ExplainOp = std::string (*)(c10::ArrayRef<c10::IValue> args);

// The names of ops are without their namespace, as torch::Library takes them.
class OpRegistry {
 public:
  static OpRegistry& instance();
  OpRegistry(const OpRegistry&) = delete;
  OpRegistry& operator=(const OpRegistry&) = delete;

  // An op of ATen that is made of others, below autograd: ATen's derivative
  // formula is that of the whole.
  template <class Kernel>
  void composed(const char* op, Kernel&& kernel) {
    aten_.impl(op, std::forward<Kernel>(kernel));
    set_kind(op, OpKind::kComposition);
  }

  // An op of ATen with a kernel of our own, below autograd.
  template <class Kernel>
  void own_kernel(const char* op, Kernel&& kernel) {
    aten_.impl(op, std::forward<Kernel>(kernel));
    set_kind(op, OpKind::kOwnKernel);
  }

  // A kernel in the place of ATen's derivative formula. What it calls is
  // recorded instead.
  template <class Kernel>
  void above_autograd(const char* op, Kernel&& kernel) {
    aten_autograd_.impl(op, std::forward<Kernel>(kernel));
  }

  // A kernel for distributed tensors whose shards are sparse.
  template <class Kernel>
  void sparse(const char* op, Kernel&& kernel) {
    sparse_aten_.impl(op, std::forward<Kernel>(kernel));
  }
  // The same for two names of one op.
  template <class Kernel>
  void sparse(const char* op, const char* alias, const Kernel& kernel) {
    sparse(op, kernel);
    sparse(alias, kernel);
  }

  // An op of our own, by define_op (own_op.h): its kernels for plain and for
  // meta tensors, and its gradient if it has one. Distributed tensors are
  // served by its rule.
  void define(
      const char* name,
      const char* schema,
      torch::CppFunction on_data,
      torch::CppFunction on_meta,
      std::optional<torch::CppFunction> gradient);

  // How calls of an op of ATen are explained; the default traces a call.
  void explained_by(const char* op, ExplainOp explain);
  ExplainOp explanation(const std::string& name) const;

  // Of an op that ATen makes of others: kComposition.
  OpKind kind(const c10::OperatorHandle& op) const;

  // Registers the kernels of all ops that no family has registered. After this
  // nothing more is registered.
  void register_the_rest();

 private:
  OpRegistry();
  void set_kind(const char* op, OpKind kind);
  void serve_by_rule(const char* name);
  void register_boxed_kernels();
  void register_sparse_kernels();

  torch::Library tessera_;
  torch::Library tessera_distributed_;
  torch::Library tessera_autograd_;
  torch::Library aten_;
  torch::Library aten_autograd_;
  torch::Library sparse_aten_;
  torch::Library fallback_;
  torch::Library sparse_fallback_;
  torch::Library autograd_fallback_;
  std::unordered_map<c10::OperatorName, OpKind> kinds_;
  std::unordered_map<std::string, ExplainOp> explanations_;
};

// An op on sparse distributed tensors: what it is for dense ones.
void run_as_dense(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Kernels that a family of ops registers.
using OpFamily = void (*)(OpRegistry& registry);

// Registers every op, the families first. Called once, where the library is
// loaded.
void register_all_ops(std::initializer_list<OpFamily> families);

}  // namespace tessera::detail
