#include "plan/lookup_cost.h"

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

}  // namespace tessera::detail
