#include "plan/lookup_cost.h"

#include <algorithm>

#include "plan/cost.h"

namespace tessera::detail {

double gather_cost(const LookupSize& size) {
  return step_cost(
             Step::Kind::AllGather,
             size.indices * size.index_bytes,
             size.ranks) +
         step_cost(
             Step::Kind::ReduceScatter,
             size.indices * size.ranks * size.row_bytes,
             size.ranks);
}

double exchange_cost(const LookupSize& size) {
  constexpr int64_t kCountBytes = sizeof(int64_t);
  const auto all_to_all = [&](int64_t bytes) {
    return step_cost(Step::Kind::AllToAll, bytes, size.ranks);
  };
  return all_to_all(size.ranks * kCountBytes) +
         all_to_all(size.indices * size.index_bytes) +
         all_to_all(size.indices * size.row_bytes);
}

int64_t exchange_bytes(const LookupSize& size) {
  return size.indices * (size.index_bytes + size.row_bytes);
}

double gather_cost(const BagLookupSize& size) {
  const auto& [ranks, indices, index_bytes, row_bytes] = size.entries;
  const int64_t all_bags = size.bags * ranks;
  double cost = step_cost(Step::Kind::AllGather, indices * index_bytes, ranks);
  if (size.per_sample_weight_bytes > 0) {
    cost += step_cost(
        Step::Kind::AllGather, indices * size.per_sample_weight_bytes, ranks);
  }
  if (size.argmax_bytes == 0) {
    return cost +
           step_cost(Step::Kind::ReduceScatter, all_bags * row_bytes, ranks);
  }
  return cost + step_cost(Step::Kind::AllReduce, all_bags * row_bytes, ranks) +
         step_cost(Step::Kind::AllReduce, all_bags * size.argmax_bytes, ranks);
}

double exchange_cost(const BagLookupSize& size) {
  constexpr int64_t kRequestBytes = 72;
  const auto& [ranks, indices, index_bytes, row_bytes] = size.entries;
  const auto all_to_all = [ranks = ranks](int64_t bytes) {
    return step_cost(Step::Kind::AllToAll, bytes, ranks);
  };
  // A bag has entries of as many owners as there are, or as it has entries.
  const int64_t pairs = std::min(indices, size.bags * ranks);
  double pooled = all_to_all((pairs + indices) * index_bytes) +
                  all_to_all(pairs * row_bytes);
  if (size.per_sample_weight_bytes > 0) {
    pooled += all_to_all(indices * size.per_sample_weight_bytes);
  }
  if (size.argmax_bytes > 0) {
    pooled += all_to_all(pairs * size.argmax_bytes);
  }
  const double rows =
      all_to_all(indices * index_bytes) + all_to_all(indices * row_bytes);
  return all_to_all(ranks * kRequestBytes) + std::min(pooled, rows);
}

int64_t exchange_bytes(const BagLookupSize& size) {
  const int64_t entry = size.per_sample_weight_bytes + size.argmax_bytes;
  return exchange_bytes(size.entries) + size.entries.indices * entry;
}

}  // namespace tessera::detail
