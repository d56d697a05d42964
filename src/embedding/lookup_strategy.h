// Which strategy a lookup takes, of rows or of bags: where indices are sharded
// over the ranks that share a table's rows, Gather or Exchange; and where bags
// are exchanged, whether owners pool them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "embedding/handshake.h"
#include "embedding/table_lookup.h"
#include "plan/lookup_cost.h"
#include "tessera/spec.h"

namespace tessera::detail {

// The layouts of an exchange.
struct ExchangeLayout {
  int64_t mesh_dim;     // which shards rows and indices both
  Placements output;    // of what is looked up
  Placements gradient;  // of the table's gradient
  // Of the gradient of per_sample_weights: each rank's columns have a share.
  Placements weights_gradient;
};

// nullopt where the exchange cannot serve: no mesh dimension shards the table's
// rows and the indices, several shard its rows, or a sparse gradient would have
// to be reduced.
std::optional<ExchangeLayout> exchange_layout(
    const Spec& table, const Spec& batch, bool sparse);

// One row as far as a rank holds it, of `indices` indices a rank.
LookupSize lookup_size(
    const Spec& table, const Spec& batch, int64_t mesh_dim, int64_t indices);

// How a lookup with sharded indices is carried out, and why.
class StrategyResult {
 public:
  // `size`: LookupSize or BagLookupSize; what it costs either way.
  template <class Size>
  static StrategyResult of(ExchangeLayout layout, const Size& size) {
    return StrategyResult(
        std::move(layout),
        gather_cost(size),
        exchange_cost(size),
        exchange_bytes(size));
  }
  // The exchange cannot serve.
  static StrategyResult only_gather() { return StrategyResult(); }

  // The exchange, where it is taken; nullopt for Gather.
  std::optional<ExchangeLayout> exchange() const {
    return exchanges_ ? layout_ : std::nullopt;
  }
  // Before an op of ATen exchanges: throws in an ExplicitCommunication scope.
  // `instead` is the function that is there for the exchange.
  void check_implicit(
      std::string_view op,
      const Spec& table,
      const Spec& batch,
      std::string_view instead) const;
  // Both strategies with their costs, as text.
  std::string explain(
      std::string_view op, const Spec& table, const Spec& batch) const;

 private:
  StrategyResult() = default;
  StrategyResult(
      ExchangeLayout layout, double gather, double exchange, int64_t bytes);

  std::optional<ExchangeLayout> layout_;
  double gather_ = 0;  // microseconds
  double exchange_ = 0;
  int64_t exchange_bytes_ = 0;
  bool exchanges_ = false;
};

// Whether owners pool the bags asked of them, or send rows: as the query says,
// or whichever sends fewer bytes over all ranks, given the sum of their
// requests.
bool owners_pool(
    const LookupRequest& request,
    const SettledLookup& settled,
    const BagRequest& sum,
    at::ScalarType argmax_dtype);

}  // namespace tessera::detail
