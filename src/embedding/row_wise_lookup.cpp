#include "embedding/row_wise_lookup.h"

#include <algorithm>
#include <limits>

#include "comm/result.h"
#include "embedding/handshake.h"
#include "embedding/lookup_strategy.h"
#include "embedding/pooled_lookup.h"
#include "embedding/row_lookup.h"

namespace tessera::detail {

namespace {

// Where the distinct rows are asked for from the start.
void tell(
    BagRequests& requests, const Route& route, int64_t self, bool padding) {
  int64_t all_rows = 0;
  for (size_t c = 0; c < requests.size(); ++c) {
    requests[c].rows = route.counts[c];
    all_rows += static_cast<int64_t>(c) == self ? 0 : route.counts[c];
  }
  for (auto& request : requests) {
    request.all_rows = all_rows;
    request.flags |= padding ? BagRequest::kPadding : 0;
  }
}

void tell(BagRequests& requests, const BagRoute& route, int64_t self) {
  for (size_t c = 0; c < requests.size(); ++c) {
    auto& request = requests[c];
    request.bags = route.bag_counts[c];
    request.indices = route.entry_counts[c];
    request.rows = route.row_counts[c];
    request.all_bags = total(route.bag_counts) - route.bag_counts[self];
    request.all_indices = total(route.entry_counts) - route.entry_counts[self];
    request.all_rows = total(route.row_counts);
    request.longest = route.longest;
    request.flags |= route.padding ? BagRequest::kPadding : 0;
  }
}

bool has_padding(const LookupInput& input, const LookupQuery& query) {
  return query.max_norm.has_value() && query.left_out() >= 0 &&
         input.indices.eq(query.left_out()).any().item<bool>();
}

}  // namespace

c10::intrusive_ptr<TableLookup> make_row_wise_lookup(
    LookupRequest request,
    const WantedGradients& wanted,
    const LocalError& error) {
  const Spec& table = *request.table;
  const LookupQuery& query = request.query;
  const MeshDim at{table.mesh, request.mesh_dim};
  const Sizes bounds = owner_bounds(table, request.mesh_dim);
  const auto self = [&](size_t i) {
    return table.mesh.coordinate(table.mesh.local_positions()[i], at.dim);
  };
  const auto rows_of = [&](size_t i) {
    return route_rows_without(
        request.inputs[i].indices, bounds, query.left_out());
  };
  std::vector<Route> rows;
  std::vector<BagRoute> bags;
  std::vector<BagRequests> requests;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const auto& input = request.inputs[i];
    requests.push_back(
        bag_requests(table.mesh.size(at.dim), input, query, wanted, error));
    if (query.strategy == BagStrategy::Rows) {
      rows.push_back(rows_of(i));
      tell(requests[i], rows[i], self(i), has_padding(input, query));
    } else {
      bags.push_back(route_bags(
          input,
          bounds,
          self(i),
          query.left_out(),
          /*count_rows=*/query.strategy == BagStrategy::Cheapest,
          index_dtype(table.sizes[0])));
      tell(requests[i], bags[i], self(i));
    }
  }
  const auto [told, settled, sum] =
      shake_hands(at, requests, error, query.caller->name);
  // The argmax is counted from 0, and one number is kept for "none".
  const auto argmax_dtype =
      sum.longest <= std::numeric_limits<uint8_t>::max() ? at::kByte : at::kInt;
  if (owners_pool(
          table,
          query,
          {sum.all_bags, sum.all_indices, sum.all_rows},
          settled.per_sample_weights,
          argmax_dtype)) {
    return make_pooled_lookup(
        std::move(request), settled, std::move(bags), told, argmax_dtype);
  }
  std::vector<Parts> asked;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    if (rows.size() == i) {
      rows.push_back(rows_of(i));
    }
    asked.emplace_back();
    for (const auto& their : told[i]) {
      asked[i].push_back(their.rows);
    }
    asked[i][self(i)] = rows[i].counts[self(i)];
  }
  RowExchange exchange(
      {request.table, request.mesh_dim, settled.silent},
      std::move(rows),
      std::move(asked));
  return make_row_lookup(std::move(request), settled, std::move(exchange));
}

}  // namespace tessera::detail
