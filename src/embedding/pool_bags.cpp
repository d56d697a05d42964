#include "embedding/pool_bags.h"

#include "comm/comm_event.h"
#include "core/hash.h"
#include "dispatch/agreement.h"
#include "dispatch/autograd.h"
#include "dispatch/implicit_moves.h"
#include "dispatch/op_plan.h"
#include "embedding/bag_max.h"
#include "embedding/embedding.h"
#include "embedding/gathered_lookup.h"
#include "embedding/handshake.h"
#include "embedding/lookup_strategy.h"
#include "kernels/bag/bag_reader.h"
#include "tessera/embedding.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

constexpr std::string_view kBagOp = "aten._embedding_bag.default";
constexpr const char* kOffsetsDiffer =
    "[embedding_bag] the ranks were given different offsets: give every rank "
    "the same";

// The offsets as int64 on the CPU; undefined where there are no data here.
at::Tensor readable_offsets(const BagCall& call) {
  const auto& shards = current_shards(call.args.bags.offsets);
  return shards.empty() || shards[0].is_meta()
             ? at::Tensor()
             : shards[0].to(c10::kCPU, at::kLong).contiguous();
}

bool are_of_equal_rows(c10::IntArrayRef offsets, int64_t entries) {
  const auto bags = static_cast<int64_t>(offsets.size());
  if (bags == 0 || entries % bags != 0) {
    return bags == 0;
  }
  for (int64_t b = 0; b < bags; ++b) {
    if (offsets[b] != b * (entries / bags)) {
      return false;
    }
  }
  return true;
}

// Whether the chunks of indices along the mesh dimension `m` begin where the
// chunks of bags do. Every rank has all offsets, and finds the same.
bool shards_hold_whole_bags(const BagCall& call, int64_t m) {
  const Spec& batch = call.batch();
  const auto starts = readable_offsets(call);
  if (!starts.defined()) {
    return false;
  }
  const auto* start = starts.const_data_ptr<int64_t>();
  const int64_t bags = call.bags();
  const int64_t n = batch.sizes[0];
  // Entries after the last bag are in no chunk of bags.
  if (call.args.options.include_last_offset && bags >= 0 && start[bags] != n) {
    return false;
  }
  const int64_t ranks = batch.mesh.size(m);
  for (int64_t c = 0; c < ranks; ++c) {
    const int64_t bag = chunk(bags, ranks, c).begin;
    if (chunk(n, ranks, c).begin != (bag < bags ? start[bag] : n)) {
      return false;
    }
  }
  return true;
}

// The fingerprint of plain offsets, which may differ from rank to rank, where
// what is sent hangs on them; 0 for others. Those of rows of equal length are
// not compared: libtorch makes them for inputs of two dimensions, by the shape.
uint64_t offsets_to_compare(const BagCall& call) {
  const Spec& batch = call.batch();
  if (!call.plain_offsets ||
      !differs_over_ranks(batch.placements, batch.mesh)) {
    return 0;
  }
  const auto offsets = readable_offsets(call);
  if (!offsets.defined()) {
    return 0;
  }
  const c10::IntArrayRef values(
      offsets.const_data_ptr<int64_t>(), offsets.numel());
  return are_of_equal_rows(values, call.args.bags.indices.size(0))
             ? 0
             : hash_combine(0, values) | 1;
}

// The one mesh dimension that shards the indices; -1 for none or several.
int64_t batch_dim(const Spec& batch) {
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

void place_weights(BagCall& call, PlacementsRef placements) {
  if (auto& weights = call.args.bags.per_sample_weights; weights.has_value()) {
    weights = redistribute(*weights, placements, kBagCause);
  }
}

at::Tensor pool_in_place(const BagCall& call) {
  return std::get<0>(recorded_bag(call.args));
}

// Every rank gets all indices. Where `scattered` names a mesh dimension, the
// bags are scattered along it.
at::Tensor gather_bags(BagCall call, std::optional<int64_t> scattered) {
  const Placements whole(call.batch().mesh.ndim(), Replicate());
  const auto given = call.args.bags.indices;
  call.args.bags.indices = redistribute(given, whole, kBagCause);
  place_weights(call, whole);
  call.args.options.whole_bags = false;
  const auto bags = look_up_gathered(
      given,
      {call.args.weight.size(0), throw_outside_bag_table, kBagCause},
      [&] { return pool_in_place(call); });
  Placements placements = distributed_meta(bags).spec->placements;
  if (scattered.has_value() && !placements[*scattered].is_shard()) {
    placements[*scattered] = Shard(0);
  }
  return redistribute(bags, placements, kBagCause);
}

// nullopt where the exchange along `m` cannot serve.
std::optional<ExchangeLayout> bag_layout(const BagCall& call, int64_t m) {
  const Spec& table = call.table();
  if (m < 0 || call.args.weight.is_meta() ||
      table.mesh.local_positions().empty()) {
    return std::nullopt;
  }
  return exchange_layout(table, call.batch(), call.args.options.sparse);
}

StrategyResult choose_strategy(const BagCall& call, int64_t m) {
  auto layout = bag_layout(call, m);
  if (!layout.has_value()) {
    return StrategyResult::only_gather();
  }
  const Spec& table = call.table();
  const Spec& batch = call.batch();
  const auto size_of = [](at::ScalarType dtype) {
    return static_cast<int64_t>(c10::elementSize(dtype));
  };
  const int64_t ranks = table.mesh.size(m);
  const auto entries =
      lookup_size(table, batch, m, chunk(batch.sizes[0], ranks, 0).size);
  const int64_t columns = entries.row_bytes / size_of(table.dtype);
  const BagLookupSize size{
      entries,
      chunk(call.bags(), ranks, 0).size,
      call.args.bags.per_sample_weights.has_value() ? size_of(table.dtype) : 0,
      call.args.options.mode == BagMode::kMax ? columns * size_of(at::kInt)
                                              : 0};
  return StrategyResult::of(std::move(*layout), size);
}

// Whether bags of this layout may be exchanged, so that a handshake comes
// first. Ranks outside the group would not learn of it.
bool shakes_hands(const BagCall& call, int64_t m) {
  return call.table().mesh.ndim() == 1 &&
         EmbeddingScope::current().strategy != LookupStrategy::Gather &&
         bag_layout(call, m).has_value();
}

LookupQuery query_of(const BagCall& call, uint64_t offsets) {
  LookupQuery query;
  query.mode = call.args.options.mode;
  query.padding_idx = call.args.options.padding_idx;
  query.strategy = EmbeddingScope::current().bag_strategy;
  query.sparse = call.args.options.sparse;
  query.offsets = offsets;
  return query;
}

// Throws on every rank if plain offsets differ. Which collectives follow
// depends on their values, so that this must come first, by the message that a
// rank with other offsets sends first: a handshake where it may come to an
// exchange, otherwise an agreement.
void compare_offsets(const BagCall& call, int64_t m, uint64_t offsets) {
  const auto& mesh = call.batch().mesh;
  if (shakes_hands(call, m)) {
    BagRequest request;
    request.fingerprint = query_of(call, offsets).fingerprint();
    const std::vector<BagRequests> requests(
        mesh.local_positions().size(), BagRequests(mesh.size(m), request));
    const CommCauseGuard cause(kBagCaller.cause);
    shake_hands({mesh, m}, requests, {}, kBagCaller);
    return;
  }
  const SameOnAllRanks same(offsets, kOffsetsDiffer);
  run_agreed(mesh, kBagCause, [] {});
}

// What each local rank looks up. A rank whose input is wrong takes part without
// any: the others must learn of it.
LocalError bags_by_rank(
    const BagCall& call,
    const ExchangeLayout& layout,
    std::vector<LookupInput>& by_rank) {
  const auto& args = call.args;
  const auto& tables = current_shards(args.weight);
  const auto& indices = current_shards(args.bags.indices);
  const auto& offsets = current_shards(args.bags.offsets);
  const auto& positions = call.table().mesh.local_positions();
  std::vector<at::Tensor> weights;
  if (args.bags.per_sample_weights.has_value()) {
    weights = to_shards(*args.bags.per_sample_weights, layout.weights_gradient);
  }
  LocalError error;
  for (size_t i = 0; i < positions.size(); ++i) {
    by_rank.push_back(input_unless(error, tables[i].device(), [&] {
      auto mine = local_bags(
          {indices[i],
           offsets[i],
           weights.empty() ? std::nullopt : std::optional(weights[i])},
          args.options,
          bags_at(call.table(), call.batch(), call.bags(), positions[i]));
      mine.offsets = checked_bag_bounds(
          tables[i], call.table().sizes[0], mine, args.options.mode);
      mine.include_last_offset = true;
      mine.in_range = true;
      mine.indices = mine.indices.contiguous();
      return mine;
    }));
  }
  return error;
}

at::Tensor exchange_bags(
    BagCall call, const ExchangeLayout& layout, uint64_t offsets) {
  // As they were given: place_weights may put a copy in their place.
  const BagTensors bags = call.args.bags;
  place_weights(call, call.batch().placements);
  current_shards(call.args.bags.indices);
  std::vector<LookupInput> by_rank;
  const auto error = bags_by_rank(call, layout, by_rank);
  const auto& weight = call.args.weight;
  const SpecPtr& table = distributed_meta(weight).spec;
  const CommCauseGuard cause(kBagCaller.cause, table);
  const auto pooled = look_up(
      weight,
      {.table = table,
       .mesh_dim = layout.mesh_dim,
       .inputs = std::move(by_rank),
       .query = query_of(call, offsets),
       .parts_of =
           {bags.indices,
            bags.offsets,
            bags.per_sample_weights.value_or(at::Tensor())}},
      error);
  const Sizes sizes{call.bags(), weight.size(1)};
  return from_shards(
      Spec::make(call.batch().mesh, layout.output, sizes, weight.scalar_type()),
      pooled,
      /*shared=*/false);
}

}  // namespace

at::Tensor pool_bags(BagCall call) {
  const int64_t m = batch_dim(call.batch());
  const bool whole_bags = m >= 0 && shards_hold_whole_bags(call, m);
  call.args.options.whole_bags = whole_bags;
  const uint64_t offsets = offsets_to_compare(call);
  if (whole_bags && call.table().placements[m].is_replicate()) {
    place_weights(call, call.batch().placements);
    // The ranks agree on how it went: that no index is bad, and on this.
    std::optional<SameOnAllRanks> same;
    if (offsets != 0) {
      same.emplace(offsets, kOffsetsDiffer);
    }
    return pool_in_place(call);
  }
  const auto strategy =
      whole_bags ? choose_strategy(call, m) : StrategyResult::only_gather();
  const auto exchange = strategy.exchange();
  if (exchange.has_value()) {
    strategy.check_implicit(
        kBagOp, call.table(), call.batch(), "tessera::sharded::embedding_bag");
  } else {
    const Placements whole(call.batch().mesh.ndim(), Replicate());
    check_implicit_move(kBagOp, "argument 'indices'", call.batch(), whole);
  }
  if (offsets != 0 && !(exchange.has_value() && shakes_hands(call, m))) {
    compare_offsets(call, m, offsets);
  }
  if (exchange.has_value()) {
    return exchange_bags(std::move(call), *exchange, offsets);
  }
  return gather_bags(
      std::move(call), whole_bags ? std::optional(m) : std::nullopt);
}

std::string explain_bags(BagCall call) {
  const int64_t m = batch_dim(call.batch());
  call.args.options.whole_bags = m >= 0 && shards_hold_whole_bags(call, m);
  if (call.args.options.whole_bags && call.table().placements[m].is_shard(0)) {
    return choose_strategy(call, m).explain(kBagOp, call.table(), call.batch());
  }
  if (shards_rows_of_max(call.args)) {
    return std::string(kBagOp) + " on " + call.table().mesh.str() +
           "\n  maxima of each rank's rows, merged by two all_reduces\n";
  }
  return explain_op<Bag>(call.args);
}

}  // namespace tessera::detail
