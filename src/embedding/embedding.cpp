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

// A call of aten::embedding.
struct EmbeddingCall {
  at::Tensor weight;
  at::Tensor indices;
  LookupArgs options;

  const SpecPtr& table() const { return distributed_meta(weight).spec; }
  const SpecPtr& batch() const { return distributed_meta(indices).spec; }
  // Whether mesh dimension `m` shards both the table and the indices: the ranks
  // that share the table have indices of their own.
  bool shards_both(int64_t m) const {
    return table()->placements[m].is_shard() &&
           batch()->placements[m].is_shard() && table()->mesh.size(m) > 1;
  }
};

struct AtenEmbedding {
  using Result = at::Tensor;
  using Args = EmbeddingCall;
};

bool needs_strategy(const EmbeddingCall& call) {
  if (!is_dtensor(call.weight) || !is_dtensor(call.indices) ||
      call.weight.dim() != 2 || !(call.table()->mesh == call.batch()->mesh)) {
    return false;  // some are refused further down
  }
  for (int64_t m = 0; m < call.table()->mesh.ndim(); ++m) {
    if (call.shards_both(m)) {
      return true;
    }
  }
  return false;
}

StrategyResult choose_strategy(const EmbeddingCall& call) {
  const Spec& table = *call.table();
  const Spec& batch = *call.batch();
  // A rank outside the mesh has no rows to look up, and keeps its gradient.
  const bool has_data = !call.weight.is_meta() && !call.indices.is_meta() &&
                        !table.mesh.local_positions().empty();
  auto layout = has_data && !call.options.scale_grad_by_freq
                    ? exchange_layout(table, batch, call.options.sparse)
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

using LookUp = at::Tensor (*)(const Lookup::Args& args);

// Every rank gets the indices of those with whom it shares the table, and the
// rows that it finds are scattered again as the indices were.
at::Tensor gather_lookup(const EmbeddingCall& call, LookUp look_up_rows) {
  const auto& given = call.batch()->placements;
  Placements gathered = given;
  for (size_t m = 0; m < given.size(); ++m) {
    if (call.shards_both(static_cast<int64_t>(m))) {
      gathered[m] = Replicate();
    }
  }
  check_implicit_move(
      kEmbeddingOp, "argument 'indices'", *call.batch(), gathered);
  const auto whole = redistribute(call.indices, gathered, kLookupCause);
  const auto rows = look_up_gathered(
      call.indices,
      {call.weight.size(0), throw_outside_table, kLookupCause},
      [&] { return look_up_rows({call.weight, whole, call.options, {}}); });
  Placements scattered = distributed_meta(rows).spec->placements;
  for (size_t m = 0; m < given.size(); ++m) {
    // Columns stay where they are: they are whole rows' parts already.
    if (call.shards_both(static_cast<int64_t>(m)) &&
        scattered[m].is_partial()) {
      scattered[m] = given[m];
    }
  }
  return redistribute(rows, scattered, kLookupCause);
}

// Each distinct index goes to the rank that holds its row, and the row comes
// back.
at::Tensor exchange_lookup(
    const EmbeddingCall& call, const ExchangeLayout& layout) {
  if (const auto tangent = tangent_of(call.weight); tangent.defined()) {
    // Linear in the table.
    auto change = call;
    change.weight =
        redistribute(tangent, call.table()->placements, kLookupCause);
    const auto result = [&] {
      const c10::AutoFwGradMode value_only(false);
      return exchange_lookup(call, layout);
    }();
    set_tangent(result, exchange_lookup(change, layout));
    return result;
  }
  const SpecPtr& table = call.table();
  const std::array layouts{table, call.batch()};
  const CommCauseGuard cause(kLookupCause, layouts);
  LookupRequest request{table, layout.mesh_dim, {}};
  for (const auto& shard : current_shards(call.indices)) {
    request.inputs.push_back({.indices = shard, .offsets = {}});
  }
  request.query.padding_idx = call.options.padding_idx;
  request.query.strategy = BagStrategy::Rows;
  request.query.sparse = call.options.sparse;
  request.query.pools = false;
  request.query.caller = &kEmbeddingCaller;
  request.gradient =
      Spec::make(table->mesh, layout.gradient, table->sizes, table->dtype);
  request.parts_of = {call.indices};
  const auto rows = look_up(call.weight, std::move(request), {});
  Sizes sizes(call.indices.sizes());
  sizes.push_back(call.weight.size(1));
  return from_shards(
      Spec::make(table->mesh, layout.output, sizes, table->dtype),
      rows,
      /*shared=*/false);
}

// `kLookUp` serves what needs no strategy.
template <LookUp kLookUp>
at::Tensor embedding(const EmbeddingCall& call) {
  if (!needs_strategy(call)) {
    return kLookUp({call.weight, call.indices, call.options, {}});
  }
  const auto strategy = choose_strategy(call);
  const auto exchange = strategy.exchange();
  if (!exchange.has_value()) {
    return gather_lookup(call, kLookUp);
  }
  strategy.check_implicit(
      kEmbeddingOp,
      *call.table(),
      *call.batch(),
      "tessera::sharded::embedding");
  return exchange_lookup(call, *exchange);
}

std::string explain_embedding(c10::ArrayRef<c10::IValue> values) {
  const auto call = OpFunctions<AtenEmbedding>::args(values);
  if (!needs_strategy(call)) {
    return explain_op<Lookup>({call.weight, call.indices, call.options, {}});
  }
  return choose_strategy(call).explain(
      kEmbeddingOp, *call.table(), *call.batch());
}

}  // namespace

void register_embeddings(OpRegistry& ops) {
  register_lookup_op(ops);
  ops.own_kernel(
      "embedding", kUnpacked<AtenEmbedding, &embedding<call_op<Lookup>>>);
  // Without a second call by the dispatcher.
  ops.above_autograd(
      "embedding", kUnpacked<AtenEmbedding, &embedding<recorded_lookup>>);
  ops.explained_by("embedding", &explain_embedding);
  register_bag_op(ops);
  register_embedding_bag(ops);
  register_renorm(ops);
}

}  // namespace detail

}  // namespace tessera
