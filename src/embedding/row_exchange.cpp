#include "embedding/row_exchange.h"

#include "kernels/lookup/embedding.h"
#include "kernels/route/bag_route.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

Sizes owner_bounds(const Spec& table, int64_t mesh_dim) {
  Sizes bounds{0};
  for (const int64_t size :
       chunk_sizes(table.sizes[0], table.mesh.size(mesh_dim))) {
    bounds.push_back(bounds.back() + size);
  }
  return bounds;
}

Shards RowMover::operator()(
    ShardsRef rows, PartsRef sent, PartsRef received) const {
  return silent ? Shards(rows.begin(), rows.end())
                : collectives(table->mesh)
                      .all_to_all_rows(
                          {table->mesh, mesh_dim}, rows, sent, received);
}

RowExchange::RowExchange(
    RowMover move, std::vector<Route> routes, std::vector<Parts> asked_counts)
    : move_(std::move(move)),
      routes_(std::move(routes)),
      asked_counts_(std::move(asked_counts)) {
  Shards wanted;
  for (const auto& route : routes_) {
    wanted.push_back(route.wanted.to(index_dtype(move_.table->sizes[0])));
    wanted_counts_.push_back(route.counts);
  }
  asked_ = move_(wanted, wanted_counts_, asked_counts_);
}

Shards RowExchange::fetch(ShardsRef tables) const {
  const Spec& table = *move_.table;
  const auto& positions = table.mesh.local_positions();
  Shards rows;
  for (size_t i = 0; i < tables.size(); ++i) {
    const auto held = local_range(
        table.sizes[0], 0, table.mesh, table.placements, positions[i]);
    rows.push_back(
        lookup_rows(tables[i], asked_[i], held.begin, table.sizes[0]));
  }
  return move_(rows, asked_counts_, wanted_counts_);
}

Shards RowExchange::give_back(ShardsRef rows) const {
  return move_(rows, wanted_counts_, asked_counts_);
}

}  // namespace tessera::detail
