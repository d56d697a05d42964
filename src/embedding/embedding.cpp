#include "embedding/embedding.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "dispatch/autograd.h"
#include "dispatch/op_plan.h"
#include "dispatch/tensor.h"
#include "embedding/exchange.h"
#include "embedding/lookup_strategy.h"
#include "embedding/part_ops.h"
#include "plan/lookup_cost.h"
#include "tessera/embedding.h"
#include "tessera/shard_math.h"

namespace tessera {

namespace {

thread_local EmbeddingOptions current_options;

}  // namespace

EmbeddingScope::EmbeddingScope(const EmbeddingOptions& options)
    : previous_(current_options) {
  current_options = options;
}

EmbeddingScope::~EmbeddingScope() { current_options = previous_; }

const EmbeddingOptions& EmbeddingScope::current() { return current_options; }

namespace detail {

namespace {

// Whether a mesh dimension cuts both the table and the indices: the ranks that
// share the table have indices of their own.
bool both_cut(const Spec& table, const Spec& batch, int64_t m) {
  return table.placements[m].is_shard() && batch.placements[m].is_shard() &&
         table.mesh.size(m) > 1;
}

bool needs_a_strategy(const at::Tensor& weight, const at::Tensor& indices) {
  if (!is_dtensor(weight) || !is_dtensor(indices) || weight.dim() != 2) {
    return false;
  }
  const Spec& table = *distributed_meta(weight).spec;
  const Spec& batch = *distributed_meta(indices).spec;
  if (!(table.mesh == batch.mesh)) {
    return false;  // refused further down
  }
  for (int64_t m = 0; m < table.mesh.ndim(); ++m) {
    if (both_cut(table, batch, m)) {
      return true;
    }
  }
  return false;
}

StrategyCosts strategy_costs(
    const Spec& table, const Spec& batch, const ExchangeLayout& layout) {
  const auto first_shard = [](const Spec& spec) {
    return local_shape(spec.sizes, spec.mesh, spec.placements, 0);
  };
  const LookupSize size{
      table.mesh.size(layout.mesh_dim),
      c10::multiply_integers(first_shard(batch)),
      static_cast<int64_t>(c10::elementSize(batch.dtype)),
      first_shard(table)[1] *
          static_cast<int64_t>(c10::elementSize(table.dtype))};
  return {gather_cost(size), exchange_cost(size)};
}

// Every rank gets the indices of those with whom it shares the table, and what
// rows it finds are dealt out again as the indices were.
at::Tensor gather_lookup(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const LookupArgs& args) {
  const Spec& table = *distributed_meta(weight).spec;
  const Spec& batch = *distributed_meta(indices).spec;
  Placements gathered = batch.placements;
  for (int64_t m = 0; m < table.mesh.ndim(); ++m) {
    if (both_cut(table, batch, m)) {
      gathered[m] = Replicate();
    }
  }
  const auto rows =
      lookup(weight, redistribute(indices, gathered, kLookupCause), args);
  Placements dealt = distributed_meta(rows).spec->placements;
  for (int64_t m = 0; m < table.mesh.ndim(); ++m) {
    // Columns stay where they are: they are whole rows' parts already.
    if (both_cut(table, batch, m) && dealt[m].is_partial()) {
      dealt[m] = batch.placements[m];
    }
  }
  return redistribute(rows, dealt, kLookupCause);
}

// The layout of the exchange where that is the way to go; nullopt for Gather.
std::optional<ExchangeLayout> chosen_exchange(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const LookupArgs& args) {
  const auto strategy = EmbeddingScope::current().strategy;
  if (strategy == LookupStrategy::Gather) {
    return std::nullopt;
  }
  const auto layout = exchange_layout(weight, indices, args);
  if (!layout.has_value() || strategy == LookupStrategy::Exchange) {
    return layout;
  }
  const auto costs = strategy_costs(
      *distributed_meta(weight).spec, *distributed_meta(indices).spec, *layout);
  return costs.exchange < costs.gather ? layout : std::nullopt;
}

at::Tensor lookup_cut_indices(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const LookupArgs& args) {
  const auto exchange = chosen_exchange(weight, indices, args);
  return exchange.has_value()
             ? exchange_lookup(weight, indices, args, *exchange)
             : gather_lookup(weight, indices, args);
}

at::Tensor embedding(
    const at::Tensor& weight,
    const at::Tensor& indices,
    c10::SymInt padding_idx,
    bool scale_grad_by_freq,
    bool sparse) {
  const LookupArgs args{
      padding_idx.guard_int(__FILE__, __LINE__), scale_grad_by_freq, sparse};
  return needs_a_strategy(weight, indices)
             ? lookup_cut_indices(weight, indices, args)
             : lookup(weight, indices, args);
}

at::Tensor gather(
    const at::Tensor& self,
    int64_t dim,
    const at::Tensor& index,
    bool sparse_grad) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !sparse_grad,
      "[gather] sparse gradients of distributed tensors are not supported: "
      "call it with sparse_grad = false");
  return gather_distributed(self, dim, index);
}

}  // namespace

std::string explain_embedding(c10::ArrayRef<c10::IValue> args) {
  const auto& weight = args[0].toTensor();
  const auto& indices = args[1].toTensor();
  if (!needs_a_strategy(weight, indices)) {
    static const OpInfo op(
        c10::Dispatcher::singleton().findSchemaOrThrow("tessera::lookup", ""));
    torch::jit::Stack own(args.begin(), args.end());
    own.insert(own.end(), {int64_t{0}, c10::IValue()});
    return explain_plan(op, own);
  }
  const LookupArgs lookup_args{
      args[2].toInt(), args[3].toBool(), args[4].toBool()};
  const auto possible = exchange_layout(weight, indices, lookup_args);
  const auto chosen = chosen_exchange(weight, indices, lookup_args);
  const Spec& table = *distributed_meta(weight).spec;
  const Spec& batch = *distributed_meta(indices).spec;
  return strategies_text(
      "aten.embedding.default",
      table,
      batch,
      possible.has_value()
          ? std::optional(strategy_costs(table, batch, *possible))
          : std::nullopt,
      chosen.has_value());
}

std::string explain_gather(c10::ArrayRef<c10::IValue> args) {
  static const OpInfo op(c10::Dispatcher::singleton().findSchemaOrThrow(
      "tessera::gather_part", ""));
  return explain_plan(
      op,
      torch::jit::Stack{args[0], args[1], args[2], int64_t{0}, c10::IValue()});
}

void register_embeddings(OpRegistry& ops) {
  register_part_ops(ops);
  register_part_gradients(ops);
  register_bag_ops(ops);
  register_bag_gradients(ops);
  ops.own_kernel("embedding", &embedding);
  ops.above_autograd("embedding", &embedding);
  ops.explained_by("embedding", &explain_embedding);
  ops.own_kernel("gather", &gather);
  ops.above_autograd("gather", &gather);
  ops.explained_by("gather", &explain_gather);
  register_embedding_bag(ops);
  register_renorm(ops);
}

}  // namespace detail

}  // namespace tessera
