#include "embedding/lookup_strategy.h"

#include <iomanip>
#include <sstream>

#include "dispatch/implicit_moves.h"
#include "dispatch/run_by_rule.h"
#include "dispatch/scopes.h"
#include "kernels/route/bag_route.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

int64_t size_of(at::ScalarType dtype) {
  return static_cast<int64_t>(c10::elementSize(dtype));
}

// The most columns that a rank has: groups with fewer decide alike.
int64_t width_of(const Spec& table) {
  return local_shape(table.sizes, table.mesh, table.placements, 0)[1];
}

}  // namespace

std::optional<ExchangeLayout> exchange_layout(
    const Spec& table, const Spec& batch, bool sparse) {
  if (table.dim() != 2) {
    return std::nullopt;
  }
  ExchangeLayout layout{
      -1, batch.placements, table.placements, batch.placements};
  for (int64_t m = 0; m < table.mesh.ndim(); ++m) {
    const Placement& rows = table.placements[m];
    const Placement& ids = batch.placements[m];
    if (table.mesh.size(m) == 1) {
      continue;
    }
    if (rows.is_shard(0) && ids.is_shard() && layout.mesh_dim < 0) {
      layout.mesh_dim = m;
    } else if (rows.is_shard(1) && ids.is_replicate()) {
      layout.output[m] = Shard(batch.dim());
      layout.weights_gradient[m] = Partial();
    } else if (rows.is_replicate() && ids.is_shard()) {
      if (sparse) {
        return std::nullopt;  // a sparse gradient cannot be reduced
      }
      layout.gradient[m] = Partial();
    } else if (!(rows.is_replicate() && ids.is_replicate())) {
      return std::nullopt;
    }
  }
  return layout.mesh_dim < 0 ? std::nullopt : std::optional(layout);
}

LookupSize lookup_size(
    const Spec& table, const Spec& batch, int64_t mesh_dim, int64_t indices) {
  return {
      table.mesh.size(mesh_dim),
      indices,
      size_of(batch.dtype),
      width_of(table) * size_of(table.dtype)};
}

StrategyResult::StrategyResult(
    ExchangeLayout layout, double gather, double exchange, int64_t bytes)
    : layout_(std::move(layout)),
      gather_(gather),
      exchange_(exchange),
      exchange_bytes_(bytes) {
  const auto strategy = EmbeddingScope::current().strategy;
  exchanges_ = strategy == LookupStrategy::Exchange ||
               (strategy == LookupStrategy::Cheapest && exchange < gather);
}

void StrategyResult::check_implicit(
    std::string_view op,
    const Spec& table,
    const Spec& batch,
    std::string_view instead) const {
  if (!is_explicit()) {
    return;
  }
  check_implicit_exchange(
      op,
      {c10::str(
           "exchange argument 'indices' (",
           to_string(batch.placements),
           ") for rows of 'weight' (",
           to_string(table.placements),
           ") with their owners, by the strategy Exchange"),
       exchange_bytes_,
       c10::str("Call ", instead, ", which is there for the exchange")});
}

std::string StrategyResult::explain(
    std::string_view op, const Spec& table, const Spec& batch) const {
  std::ostringstream text;
  text << op << " on " << table.mesh.str() << "\n"
       << "  table " << to_string(table.placements) << ", indices "
       << to_string(batch.placements)
       << ": ranks that share the table have indices of their own\n";
  if (!layout_.has_value()) {
    text << "  * gather    the exchange cannot serve\n";
    return text.str();
  }
  text << std::fixed << std::setprecision(1);
  text << (exchanges_ ? "    " : "  * ") << "gather    " << gather_ << " us\n"
       << (exchanges_ ? "  * " : "    ") << "exchange  " << exchange_
       << " us\n";
  return text.str();
}

// The bytes are those of docs/embedding_bags.md, of a forward pass. The
// backward passes send the same rows back, so that they change little.
bool owners_pool(
    const LookupRequest& request,
    const SettledLookup& settled,
    const BagRequest& sum,
    at::ScalarType argmax_dtype) {
  const Spec& table = *request.table;
  const LookupQuery& query = request.query;
  if (query.strategy != BagStrategy::Cheapest) {
    return query.strategy == BagStrategy::Pooled;
  }
  const int64_t index = size_of(index_dtype(table.sizes[0]));
  const int64_t element = query.mode == BagMode::kMax
                              ? size_of(table.dtype) + size_of(argmax_dtype)
                              : size_of(accumulate_dtype(table.dtype));
  const int64_t weight = settled.per_sample_weights ? size_of(table.dtype) : 0;
  const int64_t width = width_of(table);
  const int64_t pooled = sum.all_bags * (index + width * element) +
                         sum.all_indices * (index + weight);
  const int64_t rows = sum.all_rows * (index + width * size_of(table.dtype));
  return pooled < rows;
}

}  // namespace tessera::detail
