#include "embedding/bag_max.h"

#include <limits>

#include "comm/comm_event.h"
#include "dispatch/agreement.h"
#include "dispatch/autograd.h"
#include "dispatch/implicit_moves.h"
#include "embedding/embedding.h"

namespace tessera::detail {

namespace {

constexpr int32_t kNobody = std::numeric_limits<int32_t>::max();

// The value of a table that may be a pending reduction.
at::Tensor without_pending(const at::Tensor& weight) {
  return redistribute(
      weight,
      grad_placements_of(distributed_meta(weight).spec->placements),
      kBagCause);
}

// Whether no mesh dimension shards both the table and the indices.
bool shards_apart(const at::Tensor& weight, const at::Tensor& indices) {
  const auto& table = distributed_meta(weight).spec->placements;
  const auto& batch = distributed_meta(indices).spec->placements;
  for (size_t m = 0; m < table.size(); ++m) {
    if (table[m].is_shard() && !batch[m].is_replicate()) {
      return false;
    }
  }
  return true;
}

// Of equal maxima the first entry of the bag wins, on whichever rank it is. A
// NaN is a bag's first entry, or it would have been passed over: it comes
// before every other rank's, and nothing is less than it.
void merge(const MeshDim& at, Shards& values, Shards& argmax) {
  auto& comm = collectives(at.mesh);
  const auto best = comm.all_reduce(at, values, ReduceOp::Max);
  for (size_t i = 0; i < argmax.size(); ++i) {
    const auto lost = argmax[i].lt(0).logical_or_(values[i].lt(best[i]));
    argmax[i] = argmax[i].masked_fill(lost, kNobody);
  }
  argmax = comm.all_reduce(at, argmax, ReduceOp::Min);
  for (const auto& places : argmax) {
    places.masked_fill_(places.eq(kNobody), -1);
  }
  values = best;
}

}  // namespace

bool shards_rows_of_max(const Bag::Args& args) {
  if (args.options.mode != BagMode::kMax || !is_dtensor(args.weight) ||
      args.weight.is_meta()) {
    return false;
  }
  const Spec& table = *distributed_meta(args.weight).spec;
  for (int64_t m = 0; m < table.mesh.ndim(); ++m) {
    if (table.placements[m].is_shard(0) && table.mesh.size(m) > 1) {
      return true;
    }
  }
  return false;
}

Bag::Result max_over_rows(const Bag::Args& args) {
  const Placements whole(
      distributed_meta(args.weight).spec->mesh.ndim(), Replicate());
  const auto weight = without_pending(args.weight);
  const auto offsets = redistribute(args.bags.offsets, whole, kBagCause);
  const auto indices =
      args.options.whole_bags && shards_apart(weight, args.bags.indices)
          ? args.bags.indices
          : redistribute(args.bags.indices, whole, kBagCause);
  const auto& table = *distributed_meta(weight).spec;
  const auto& batch = *distributed_meta(indices).spec;
  const auto& positions = table.mesh.local_positions();
  const int64_t bags = all_bags(offsets, args.options.include_last_offset);
  check_implicit_exchange(
      "aten._embedding_bag.default",
      {"merge the maxima of each rank's rows of 'weight' by two all_reduces",
       bags * weight.size(1) *
           static_cast<int64_t>(
               c10::elementSize(table.dtype) + sizeof(int32_t)),
       "Call redistribute(...) on the table first"});
  Shards values;
  Shards argmax;
  const auto find_maxima = [&] {
    for (size_t i = 0; i < positions.size(); ++i) {
      auto part = plain_bag(
          {current_shards(weight)[i],
           {current_shards(indices)[i],
            current_shards(offsets)[i],
            std::nullopt},
           args.options,
           bags_at(table, batch, bags, positions[i])},
          BagEmpty::kLowest);
      values.push_back(std::move(part.values));
      argmax.push_back(std::move(part.argmax));
    }
  };
  if (differs_over_ranks(batch.placements, table.mesh)) {
    run_agreed(table.mesh, kBagCause, find_maxima);
  } else {
    find_maxima();
  }
  const CommCauseGuard cause(kBagCause);
  Placements placements = table.placements;
  for (int64_t m = 0; m < table.mesh.ndim(); ++m) {
    if (placements[m].is_shard(0)) {
      merge({table.mesh, m}, values, argmax);
      placements[m] = Replicate();
    } else if (placements[m].is_replicate()) {
      placements[m] = batch.placements[m];
    }
  }
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = values[i].masked_fill(argmax[i].lt(0), 0);
  }
  const Sizes sizes{bags, weight.size(1)};
  return {
      make_distributed(
          Spec::make(table.mesh, placements, sizes, table.dtype),
          std::move(values)),
      make_distributed(
          Spec::make(table.mesh, placements, sizes, at::kInt),
          std::move(argmax))};
}

}  // namespace tessera::detail
