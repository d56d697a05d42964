// What the two ways of a lookup with sharded indices cost, by the one cost
// function.
#pragma once

#include <cstdint>

namespace tessera::detail {

// A group of ranks that share the rows of a table, each with as many indices.
struct LookupSize {
  int64_t ranks;
  int64_t indices;      // of one rank
  int64_t index_bytes;  // of one index
  int64_t row_bytes;    // of one row, as far as a rank holds it
};

// All indices to all ranks, then a reduce-scatter of the rows.
double gather_cost(const LookupSize& size);

// Counts, indices and rows by all-to-all. As if no index occurred twice and all
// owners were asked alike.
double exchange_cost(const LookupSize& size);

}  // namespace tessera::detail
