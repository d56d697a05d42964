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

bool has_padding(const LookupInput& input, const LookupQuery& query) {
  return query.max_norm.has_value() && query.left_out() >= 0 &&
         input.indices.eq(query.left_out()).any().item<bool>();
}

}  // namespace

LookupPtr make_row_wise_lookup(LookupRequest request, const LocalError& error) {
  const Spec& table = *request.table;
  const LookupQuery& query = request.query;
  const Sizes bounds = owner_bounds(table, request.mesh_dim);
  const auto rows_of = [&](size_t i) {
    return route_rows_without(
        request.inputs[i].indices, bounds, query.left_out());
  };
  std::vector<Route> rows;
  std::vector<BagRoute> bags;
  std::vector<BagRequests> requests;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const auto& input = request.inputs[i];
    const int64_t self = request.coordinate(i);
    requests.push_back(bag_requests(request, i, error));
    if (query.strategy == BagStrategy::Rows) {
      rows.push_back(rows_of(i));
      tell(requests[i], rows[i], self, has_padding(input, query));
    } else {
      bags.push_back(route_bags(input, query, bounds, self));
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
      rows.push_back(rows_of(i));
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
