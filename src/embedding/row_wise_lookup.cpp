// Lookups in a row-wise sharded table: the handshake, and what follows from it.
#include <limits>
#include <optional>

#include "comm/result.h"
#include "embedding/lookup_strategy.h"
#include "embedding/make_lookup.h"

namespace tessera::detail {

namespace {

// Where each row that is looked up goes, and where bags may be pooled by owners
// each entry.
BagRoute route_of(
    const LookupInput& input,
    const LookupQuery& query,
    const BagOwners& owners) {
  if (query.strategy != BagStrategy::Rows) {
    return route_bags(input, owners);
  }
  const Sizes none(owners.bounds.size() - 1, 0);
  BagRoute route{none, none, none};
  route.rows =
      route_other_rows(input.indices, owners.bounds, input.padding_idx);
  route.row_counts = route.rows->counts;
  route.row_counts[owners.self] = 0;
  route.padding = route.rows->left_out;
  return route;
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

// The exchange of the distinct rows, which every rank has told of.
RowExchange exchange_rows(
    const LookupRequest& request,
    const Handshake& handshake,
    c10::IntArrayRef bounds,
    std::vector<BagRoute> routes) {
  std::vector<Route> rows;
  std::vector<Parts> asked;
  for (size_t i = 0; i < routes.size(); ++i) {
    const auto& input = request.inputs[i];
    rows.push_back(
        routes[i].rows.has_value()
            ? *std::move(routes[i].rows)
            : route_other_rows(input.indices, bounds, input.padding_idx));
    const int64_t self = request.coordinate(i);
    asked.push_back(each_of(handshake.told[i], &BagRequest::rows));
    asked[i][self] = rows[i].counts[self];
  }
  return RowExchange(
      {request.table, request.mesh_dim, handshake.settled.silent},
      std::move(rows),
      std::move(asked));
}

}  // namespace

LookupPtr make_row_wise_lookup(
    LookupRequest request, const LocalError& known_error) {
  const LookupQuery& query = request.query;
  const Sizes bounds = owner_bounds(*request.table, request.mesh_dim);
  LocalError error = known_error;
  std::vector<BagRoute> routes;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const auto& input = request.inputs[i];
    const BagOwners owners{
        bounds, request.coordinate(i), query.strategy == BagStrategy::Cheapest};
    std::optional<BagRoute> route;
    if (error.text.empty()) {
      // On a GPU this is where bad indices are found.
      error = local_error_of([&] { route = route_of(input, query, owners); });
    }
    routes.push_back(
        route.has_value()
            ? *std::move(route)
            : route_of(no_input(input.indices.device()), query, owners));
  }
  std::vector<BagRequests> requests;
  for (size_t i = 0; i < routes.size(); ++i) {
    requests.push_back(bag_requests(request, i, error));
    tell(requests[i], routes[i], request.coordinate(i));
  }
  const auto handshake =
      shake_hands(request.along(), requests, error, *query.caller);
  // The argmax is counted from 0, and one number is kept for "none".
  const auto argmax_dtype =
      handshake.sum.longest <= std::numeric_limits<uint8_t>::max() ? at::kByte
                                                                   : at::kInt;
  if (owners_pool(request, handshake.settled, handshake.sum, argmax_dtype)) {
    return make_pooled_lookup(
        std::move(request), handshake, std::move(routes), argmax_dtype);
  }
  auto exchange = exchange_rows(request, handshake, bounds, std::move(routes));
  return make_row_lookup(
      std::move(request), handshake.settled, std::move(exchange));
}

}  // namespace tessera::detail
