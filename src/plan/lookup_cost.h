// What the two strategies of a lookup with sharded indices cost, of rows or of
// bags, by the one cost function.
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

// The bytes that a rank then hands over, at most: indices and rows.
int64_t exchange_bytes(const LookupSize& size);

// The same with bags, each rank having as many, of equal lengths.
struct BagLookupSize {
  LookupSize entries;
  int64_t bags;                     // of one rank
  int64_t per_sample_weight_bytes;  // of one entry; 0 for none
  int64_t argmax_bytes;             // of the argmax of a bag; 0 for other modes
};

// All indices to all ranks; sums and means by a reduce-scatter, maxima and
// their argmax by an all-reduce each.
double gather_cost(const BagLookupSize& size);

// A handshake, then bags and what owners pool of them, or entries and rows.
double exchange_cost(const BagLookupSize& size);
int64_t exchange_bytes(const BagLookupSize& size);

}  // namespace tessera::detail
