// aten::embedding on distributed tensors.
#include "embedding/embedding.h"

#include <ATen/core/Tensor.h>

#include <array>

#include "comm/comm_event.h"
#include "dispatch/autograd.h"
#include "dispatch/implicit_moves.h"
#include "dispatch/op_plan.h"
#include "dispatch/tensor.h"
#include "embedding/gathered_lookup.h"
#include "embedding/lookup_op.h"
#include "embedding/lookup_strategy.h"
#include "embedding/table_lookup.h"
#include "kernels/lookup/embedding_index.h"
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

constexpr std::string_view kEmbeddingOp = "aten.embedding.default";

// Whether a mesh dimension shards both the table and the indices: the ranks
// that share the table have indices of their own.
bool shards_both(const Spec& table, const Spec& batch, int64_t m) {
  return table.placements[m].is_shard() && batch.placements[m].is_shard() &&
         table.mesh.size(m) > 1;
}

bool needs_strategy(const at::Tensor& weight, const at::Tensor& indices) {
  if (!is_dtensor(weight) || !is_dtensor(indices) || weight.dim() != 2) {
    return false;
  }
  const Spec& table = *distributed_meta(weight).spec;
  const Spec& batch = *distributed_meta(indices).spec;
  if (!(table.mesh == batch.mesh)) {
    return false;  // refused further down
  }
  for (int64_t m = 0; m < table.mesh.ndim(); ++m) {
    if (shards_both(table, batch, m)) {
      return true;
    }
  }
  return false;
}

StrategyResult choose_strategy(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const LookupArgs& args) {
  const Spec& table = *distributed_meta(weight).spec;
  const Spec& batch = *distributed_meta(indices).spec;
  // A rank outside the mesh has no rows to look up, and keeps its gradient.
  const bool has_data = !weight.is_meta() && !indices.is_meta() &&
                        !table.mesh.local_positions().empty();
  auto layout = has_data && !args.scale_grad_by_freq
                    ? exchange_layout(table, batch, args.sparse)
                    : std::nullopt;
  if (!layout.has_value()) {
    return StrategyResult::only_gather();
  }
  const auto size = lookup_size(
      table,
      batch,
      layout->mesh_dim,
      c10::multiply_integers(
          local_shape(batch.sizes, batch.mesh, batch.placements, 0)));
  return StrategyResult::of(std::move(*layout), size);
}

// Every rank gets the indices of those with whom it shares the table, and the
// rows that it finds are scattered again as the indices were.
at::Tensor gather_lookup(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const LookupArgs& args) {
  const Spec& table = *distributed_meta(weight).spec;
  const Spec& batch = *distributed_meta(indices).spec;
  Placements gathered = batch.placements;
  for (int64_t m = 0; m < table.mesh.ndim(); ++m) {
    if (shards_both(table, batch, m)) {
      gathered[m] = Replicate();
    }
  }
  check_implicit_move(kEmbeddingOp, "argument 'indices'", batch, gathered);
  const auto whole = redistribute(indices, gathered, kLookupCause);
  const auto rows = look_up_gathered(
      indices, {weight.size(0), throw_outside_table, kLookupCause}, [&] {
        return call_op<Lookup>({weight, whole, args, {}});
      });
  Placements scattered = distributed_meta(rows).spec->placements;
  for (int64_t m = 0; m < table.mesh.ndim(); ++m) {
    // Columns stay where they are: they are whole rows' parts already.
    if (shards_both(table, batch, m) && scattered[m].is_partial()) {
      scattered[m] = batch.placements[m];
    }
  }
  return redistribute(rows, scattered, kLookupCause);
}

// Each distinct index goes to the rank that holds its row, and the row comes
// back.
at::Tensor exchange_lookup(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const LookupArgs& args,
    const ExchangeLayout& layout) {
  const SpecPtr& table = distributed_meta(weight).spec;
  const std::array layouts{table, distributed_meta(indices).spec};
  const CommCauseGuard cause(kLookupCause, layouts);
  LookupRequest request{table, layout.mesh_dim, {}};
  for (const auto& shard : current_shards(indices)) {
    request.inputs.push_back({.indices = shard, .offsets = {}});
  }
  request.query.padding_idx = args.padding_idx;
  request.query.strategy = BagStrategy::Rows;
  request.query.sparse = args.sparse;
  request.query.pools = false;
  request.query.caller = &kEmbeddingCaller;
  request.gradient =
      Spec::make(table->mesh, layout.gradient, table->sizes, table->dtype);
  const auto rows = look_up(weight, std::move(request), {});
  Sizes sizes(indices.sizes());
  sizes.push_back(weight.size(1));
  return from_shards(
      Spec::make(table->mesh, layout.output, sizes, table->dtype),
      rows,
      /*shared=*/false);
}

at::Tensor embedding(
    const at::Tensor& weight,
    const at::Tensor& indices,
    // NOLINTNEXTLINE(performance-unnecessary-value-param): as the op has it
    c10::SymInt padding_idx,
    bool scale_grad_by_freq,
    bool sparse) {
  const LookupArgs args{
      padding_idx.guard_int(__FILE__, __LINE__), scale_grad_by_freq, sparse};
  if (!needs_strategy(weight, indices)) {
    return call_op<Lookup>({weight, indices, args, {}});
  }
  const auto strategy = choose_strategy(weight, indices, args);
  const auto exchange = strategy.exchange();
  if (!exchange.has_value()) {
    return gather_lookup(weight, indices, args);
  }
  strategy.check_implicit(
      kEmbeddingOp,
      *distributed_meta(weight).spec,
      *distributed_meta(indices).spec,
      "tessera::sharded::embedding");
  return exchange_lookup(weight, indices, args, *exchange);
}

std::string explain_embedding(c10::ArrayRef<c10::IValue> values) {
  const auto& weight = values[0].toTensor();
  const auto& indices = values[1].toTensor();
  const LookupArgs args{
      values[2].toInt(), values[3].toBool(), values[4].toBool()};
  if (!needs_strategy(weight, indices)) {
    return explain_op<Lookup>({weight, indices, args, {}});
  }
  return choose_strategy(weight, indices, args)
      .explain(
          kEmbeddingOp,
          *distributed_meta(weight).spec,
          *distributed_meta(indices).spec);
}

}  // namespace

void register_embeddings(OpRegistry& ops) {
  register_lookup_op(ops);
  ops.own_kernel("embedding", &embedding);
  ops.above_autograd("embedding", &embedding);
  ops.explained_by("embedding", &explain_embedding);
  register_bag_op(ops);
  register_embedding_bag(ops);
  register_renorm(ops);
}

}  // namespace detail

}  // namespace tessera
