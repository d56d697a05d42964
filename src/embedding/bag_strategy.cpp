#include "embedding/bag_strategy.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "comm/comm_event.h"
#include "dispatch/autograd.h"
#include "dispatch/op_plan.h"
#include "embedding/bag_census.h"
#include "embedding/bag_lookup.h"
#include "embedding/bag_max.h"
#include "embedding/bag_offsets.h"
#include "embedding/lookup_strategy.h"
#include "plan/lookup_cost.h"
#include "tessera/embedding.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

constexpr const char* kOffsetsDiffer =
    "[embedding_bag] the ranks were given different offsets: give every rank "
    "the same";

// The one mesh dimension that cuts the indices; -1 for none or several.
int64_t cut_dim(const Spec& batch) {
  int64_t found = -1;
  for (int64_t m = 0; m < batch.mesh.ndim(); ++m) {
    if (!batch.placements[m].is_replicate() && batch.mesh.size(m) > 1) {
      if (found >= 0 || !batch.placements[m].is_shard()) {
        return -1;
      }
      found = m;
    }
  }
  return found;
}

void place_per_sample_weights(BagCall& call, PlacementsRef placements) {
  if (call.per_sample_weights.has_value()) {
    call.per_sample_weights =
        redistribute(*call.per_sample_weights, placements, kBagCause);
  }
}

at::Tensor pool_as_they_lie(const BagCall& call) {
  return bag(call.weight,
             call.indices,
             call.offsets,
             call.per_sample_weights,
             call.args)
      .pooled;
}

// Every rank gets all indices, as if the batch had not been dealt out. Where
// `deal_out` names a mesh dimension, the bags are dealt out along it.
at::Tensor gather_bags(BagCall call, std::optional<int64_t> deal_out) {
  const auto& mesh = distributed_meta(call.indices).spec->mesh;
  const Placements whole(mesh.ndim(), Replicate());
  call.indices = redistribute(call.indices, whole, kBagCause);
  place_per_sample_weights(call, whole);
  call.args.whole_bags = false;
  const auto bags = pool_as_they_lie(call);
  Placements dealt = distributed_meta(bags).spec->placements;
  if (deal_out.has_value() && !dealt[*deal_out].is_shard()) {
    dealt[*deal_out] = Shard(0);
  }
  return redistribute(bags, dealt, kBagCause);
}

// How an exchange along one mesh dimension would lie.
struct ExchangePlan {
  int64_t mesh_dim;
  Placements output;              // of the pooled rows
  Placements per_sample_weights;  // of the gradient of per_sample_weights
};

// nullopt where the exchange cannot serve: a mesh dimension besides `m` cuts
// the table's rows or leaves them pending, or there are no data here.
std::optional<ExchangePlan> exchange_plan(const BagCall& call, int64_t m) {
  const Spec& table = *distributed_meta(call.weight).spec;
  const Spec& batch = *distributed_meta(call.indices).spec;
  if (table.dim() != 2 || !table.placements[m].is_shard(0) ||
      call.weight.is_meta() || table.mesh.local_positions().empty()) {
    return std::nullopt;
  }
  ExchangePlan plan{m, batch.placements, batch.placements};
  for (int64_t other = 0; other < table.mesh.ndim(); ++other) {
    const Placement& cut = table.placements[other];
    if (other == m || cut.is_replicate() || table.mesh.size(other) == 1) {
      continue;
    }
    if (!cut.is_shard(1)) {
      return std::nullopt;
    }
    plan.output[other] = Shard(1);
    plan.per_sample_weights[other] = Partial();
  }
  return plan;
}

StrategyCosts strategy_costs(const BagCall& call, const ExchangePlan& plan) {
  const Spec& table = *distributed_meta(call.weight).spec;
  const Spec& batch = *distributed_meta(call.indices).spec;
  const auto size_of = [](at::ScalarType dtype) {
    return static_cast<int64_t>(c10::elementSize(dtype));
  };
  const int64_t columns =
      local_shape(table.sizes, table.mesh, table.placements, 0)[1];
  const int64_t ranks = table.mesh.size(plan.mesh_dim);
  const BagLookupSize size{
      {ranks,
       chunk(batch.sizes[0], ranks, 0).size,
       size_of(batch.dtype),
       columns * size_of(table.dtype)},
      chunk(call.bags(), ranks, 0).size,
      call.per_sample_weights.has_value() ? size_of(table.dtype) : 0,
      call.args.mode == BagMode::kMax ? columns * size_of(at::kInt) : 0};
  return {gather_cost(size), exchange_cost(size)};
}

// Whether bags of this layout may be exchanged, so that a handshake comes
// first. Of a group that is not the whole mesh the others would not learn.
bool shakes_hands(const BagCall& call, int64_t m) {
  return m >= 0 && distributed_meta(call.weight).spec->mesh.ndim() == 1 &&
         EmbeddingScope::current().strategy != LookupStrategy::Gather &&
         exchange_plan(call, m).has_value();
}

// The plan of the exchange where that is the way to go; nullopt for a gather.
std::optional<ExchangePlan> chosen_exchange(const BagCall& call, int64_t m) {
  const auto strategy = EmbeddingScope::current().strategy;
  if (strategy == LookupStrategy::Gather) {
    return std::nullopt;
  }
  auto plan = exchange_plan(call, m);
  if (!plan.has_value() || strategy == LookupStrategy::Exchange) {
    return plan;
  }
  const auto costs = strategy_costs(call, *plan);
  return costs.exchange < costs.gather ? plan : std::nullopt;
}

BagQuery query_of(const BagCall& call, uint64_t offsets) {
  BagQuery query;
  query.mode = call.args.mode;
  query.padding_idx = call.args.padding_idx;
  query.strategy = EmbeddingScope::current().bag_strategy;
  query.sparse = call.args.sparse;
  query.offsets = offsets;
  return query;
}

// Throws on every rank if plain offsets differ. Which collectives follow hangs
// on their values, so that this must come first, by the message that a rank
// with other offsets sends first: a handshake where it may come to an exchange,
// otherwise an agreement.
void compare_offsets(const BagCall& call, int64_t m, uint64_t offsets) {
  const Spec& batch = *distributed_meta(call.indices).spec;
  if (shakes_hands(call, m)) {
    BagNotice notice;
    notice.fingerprint = query_of(call, offsets).fingerprint();
    const std::vector<BagNotices> notices(
        batch.mesh.local_positions().size(),
        BagNotices(batch.mesh.size(m), notice));
    // As the exchange's own handshake says.
    const CommCauseGuard cause("tessera::embedding_bag");
    swap_notices({batch.mesh, m}, notices, {}, "embedding_bag");
    return;
  }
  const SameOnAllRanks same(offsets, kOffsetsDiffer);
  run_agreed(batch.mesh, kBagCause, [] {});
}

// What each local rank looks up, or what is wrong with it. A rank whose input
// is wrong takes part without any: the others must learn of it.
LocalError bags_by_rank(
    const BagCall& call,
    const ExchangePlan& plan,
    std::vector<RankBags>& by_rank) {
  const auto& table = distributed_meta(call.weight);
  const auto& batch = distributed_meta(call.indices);
  const auto& offsets = current_shards(call.offsets);
  const auto& tables = current_shards(call.weight);
  const auto& indices = current_shards(call.indices);
  const auto& positions = table.spec->mesh.local_positions();
  std::vector<at::Tensor> per_sample_weights;
  if (call.per_sample_weights.has_value()) {
    per_sample_weights =
        to_shards(*call.per_sample_weights, plan.per_sample_weights);
  }
  LocalError error;
  for (size_t i = 0; i < positions.size(); ++i) {
    auto bags = no_bags(tables[i].device());
    if (error.text.empty()) {
      error = local_error_of([&] {
        const auto input = local_bags(
            indices[i],
            offsets[i],
            per_sample_weights.empty() ? std::nullopt
                                       : std::optional(per_sample_weights[i]),
            call.args,
            bags_at(*table.spec, *batch.spec, call.bags(), positions[i]));
        auto bounds = checked_bag_bounds(
            tables[i], table.spec->sizes[0], input, call.args.mode);
        bags = {
            input.indices.contiguous(),
            std::move(bounds),
            input.per_sample_weights.value_or(at::Tensor())};
      });
    }
    by_rank.push_back(std::move(bags));
  }
  return error;
}

at::Tensor exchange_bags(
    BagCall call, const ExchangePlan& plan, uint64_t offsets) {
  const auto& batch = distributed_meta(call.indices).spec;
  place_per_sample_weights(call, batch->placements);
  check_current(call.indices);
  std::vector<RankBags> by_rank;
  const auto error = bags_by_rank(call, plan, by_rank);
  const auto pooled = lookup_bags(
      call.weight,
      plan.mesh_dim,
      std::move(by_rank),
      query_of(call, offsets),
      error);
  const Sizes sizes{call.bags(), call.weight.size(1)};
  return from_shards(
      Spec::make(batch->mesh, plan.output, sizes, call.weight.scalar_type()),
      pooled,
      /*shared=*/false);
}

}  // namespace

at::Tensor pool_bags(BagCall call) {
  const Spec& table = *distributed_meta(call.weight).spec;
  const Spec& batch = *distributed_meta(call.indices).spec;
  const int64_t m = cut_dim(batch);
  call.args.whole_bags = m >= 0 && cut_between_bags(call, m);
  const uint64_t offsets = offsets_to_compare(call);
  if (call.args.whole_bags && table.placements[m].is_replicate()) {
    place_per_sample_weights(call, batch.placements);
    // The ranks agree on how it went: that no index is bad, and on this.
    std::optional<SameOnAllRanks> same;
    if (offsets != 0) {
      same.emplace(offsets, kOffsetsDiffer);
    }
    return pool_as_they_lie(call);
  }
  const auto plan =
      call.args.whole_bags ? chosen_exchange(call, m) : std::nullopt;
  if (offsets != 0 && !(plan.has_value() && shakes_hands(call, m))) {
    compare_offsets(call, m, offsets);
  }
  if (plan.has_value()) {
    return exchange_bags(std::move(call), *plan, offsets);
  }
  const auto deal_out = call.args.whole_bags ? std::optional(m) : std::nullopt;
  return gather_bags(std::move(call), deal_out);
}

std::string explain_strategies(const BagCall& call) {
  const Spec& table = *distributed_meta(call.weight).spec;
  const Spec& batch = *distributed_meta(call.indices).spec;
  const int64_t m = cut_dim(batch);
  const bool whole_bags = m >= 0 && cut_between_bags(call, m);
  if (whole_bags && table.placements[m].is_shard(0)) {
    const auto possible = exchange_plan(call, m);
    return strategies_text(
        "aten._embedding_bag.default",
        table,
        batch,
        possible.has_value() ? std::optional(strategy_costs(call, *possible))
                             : std::nullopt,
        chosen_exchange(call, m).has_value());
  }
  if (cuts_rows_of_max(call.weight, call.args)) {
    return "aten._embedding_bag.default on " + table.mesh.str() +
           "\n  maxima of each rank's rows, merged by two all_reduces\n";
  }
  static const OpInfo op(
      c10::Dispatcher::singleton().findSchemaOrThrow("tessera::bag", ""));
  torch::jit::Stack args;
  torch::jit::push(
      args,
      call.weight,
      call.indices,
      call.offsets,
      call.per_sample_weights,
      static_cast<int64_t>(call.args.mode),
      call.args.include_last_offset,
      call.args.padding_idx,
      whole_bags,
      int64_t{0},
      c10::IValue(),
      int64_t{0},
      c10::IValue(),
      int64_t{0});
  return explain_plan(op, args);
}

}  // namespace tessera::detail
