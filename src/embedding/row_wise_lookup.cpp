// Lookups in a row-wise sharded table: the handshake, and what follows from it.
#include <algorithm>
#include <limits>

#include "comm/result.h"
#include "embedding/lookup_strategy.h"
#include "embedding/make_lookup.h"

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

}  // namespace

LookupPtr make_row_wise_lookup(
    LookupRequest request, const LocalError& known_error) {
  const Spec& table = *request.table;
  const LookupQuery& query = request.query;
  const Sizes bounds = owner_bounds(table, request.mesh_dim);
  const auto rows_of = [&](const LookupInput& input) {
    return finish_route(start_route(input.indices, bounds, query.left_out()));
  };
  std::vector<Route> rows;
  std::vector<BagRoute> bags;
  const auto route = [&](size_t i, const LookupInput& input) {
    if (query.strategy == BagStrategy::Rows) {
      rows.push_back(rows_of(input));
    } else {
      bags.push_back(route_bags(input, query, bounds, request.coordinate(i)));
    }
  };
  // On a GPU this is where bad indices are found.
  LocalError error = known_error;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const auto& input = request.inputs[i];
    if (error.text.empty()) {
      error = local_error_of([&] { route(i, input); });
    }
    if (!error.text.empty()) {
      route(i, no_input(input.indices.device()));
    }
  }
  std::vector<BagRequests> requests;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const int64_t self = request.coordinate(i);
    requests.push_back(bag_requests(request, i, error));
    if (query.strategy == BagStrategy::Rows) {
      const bool padding = query.max_norm.has_value() && rows[i].left_out;
      tell(requests[i], rows[i], self, padding);
    } else {
      tell(requests[i], bags[i], self);
    }
  }
  const auto handshake =
      shake_hands(request.along(), requests, error, query.caller->name);
  const auto& [told, settled, sum] = handshake;
  // The argmax is counted from 0, and one number is kept for "none".
  const auto argmax_dtype =
      sum.longest <= std::numeric_limits<uint8_t>::max() ? at::kByte : at::kInt;
  if (owners_pool(request, settled, sum, argmax_dtype)) {
    return make_pooled_lookup(
        std::move(request), handshake, std::move(bags), argmax_dtype);
  }
  std::vector<Parts> asked;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    if (rows.size() == i) {
      rows.push_back(
          bags[i].rows.has_value() ? std::move(*bags[i].rows)
                                   : rows_of(request.inputs[i]));
    }
    const int64_t self = request.coordinate(i);
    asked.push_back(each_of(told[i], &BagRequest::rows));
    asked[i][self] = rows[i].counts[self];
  }
  RowExchange exchange(
      {request.table, request.mesh_dim, settled.silent},
      std::move(rows),
      std::move(asked));
  return make_row_lookup(std::move(request), settled, std::move(exchange));
}

}  // namespace tessera::detail
