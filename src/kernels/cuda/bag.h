// Pooled lookups in a part of a table.
#pragma once

#include "kernels/cuda/memory.h"

namespace tessera::detail::cuda {

// Bag b holds the entries [offsets[b], offsets[b + 1]) of `indices`; the last
// ends at offsets[count] if there is one, else with the indices. Offsets that
// decrease, do not start at 0 or exceed the indices are reported, and bags are
// then cut to what is there.
struct Bags {
  Integers indices;
  Integers offsets;
  int64_t count;
  int64_t padding;  // a row of the whole table that is left out; -1: none
};

struct BagTable {
  const void* data;
  int64_t stride;  // elements from one row to the next
  int64_t width;
  Scalar dtype;
  Part part;
};

// The number of entries of each bag that are not padding, [count]. Indices are
// not checked.
cudaError_t bag_counts(const Bags& bags, int64_t* counts, const Launch& launch);

// Where each bag begins, then where the last ends, [count + 1]. Checks indices
// against a table of `rows` rows. Requires: bounds[0] is 0.
cudaError_t bag_bounds(
    const Bags& bags, int64_t rows, int64_t* bounds, const Launch& launch);

struct BagPool {
  const void* weights;    // of each entry, of the table's dtype; or nullptr
  bool mean;              // divide by the number of entries
  const int64_t* counts;  // or by these, unless nullptr
  void* out;              // [count, width]
  bool out_is_float;      // rather than the table's half kind
};

// Sums and means. Entries are added in their order.
cudaError_t pool_bags(
    const BagTable& table,
    const Bags& bags,
    const BagPool& pool,
    const Launch& launch);

struct BagMaxima {
  bool zero_if_empty;  // where the part has no entry; else minus infinity
  void* values;        // of the table's dtype
  int32_t* argmax;
};

// Maxima and the places of the entries that have them, -1 for none: the first
// of equals; a NaN only in the first entry of the whole bag.
cudaError_t max_bags(
    const BagTable& table,
    const Bags& bags,
    const BagMaxima& maxima,
    const Launch& launch);

}  // namespace tessera::detail::cuda
