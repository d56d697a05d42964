// Entries sorted by the row they name: equal rows side by side, those of one
// row in the order of the entries. Every backward, update and routing works on
// these, so that a row is written by one thread, in one order, without atomics.
#pragma once

#include <cstddef>

#include "kernels/cuda/memory.h"

namespace tessera::detail::cuda {

// The most entries and rows: both are sorted as 32-bit numbers.
inline constexpr int64_t kMostEntries = (int64_t{1} << 31) - 1;
inline constexpr int64_t kMostRows = (int64_t{1} << 32) - 2;

// Memory for `count` entries, twice: a sort reads one and writes the other.
// Each array is aligned to 16 bytes and holds `padded(count)` numbers.
struct SortMemory {
  uint32_t* rows[2];
  uint32_t* places[2];
};

inline int64_t padded(int64_t count) { return (count + 3) / 4 * 4; }

// Entry i is the place `places[i]` of the caller's list and names `rows[i]`.
// Entries that are not held here have the row `absent` and come last.
struct Sorted {
  const uint32_t* rows;
  const uint32_t* places;
  int64_t count;
  uint32_t absent;  // the number of rows
};

// Bytes of scratch memory that sort_entries and number_runs need.
size_t sort_scratch(int64_t count, int64_t rows);
size_t number_scratch(int64_t count);

// Writes the entries of a lookup to memory.rows[0] and .places[0], unsorted.
// Entries of `padding` (a row of the whole table, -1 for none) are absent.
cudaError_t lookup_entries(
    const Integers& indices,
    const Part& part,
    int64_t padding,
    const SortMemory& memory,
    const Report& report,
    cudaStream_t);

// Sorts what stands in memory.rows[0] and .places[0]. `sorted` points into
// `memory`.
cudaError_t sort_entries(
    const SortMemory& memory,
    int64_t count,
    int64_t rows,
    void* scratch,
    size_t scratch_bytes,
    Sorted* sorted,
    cudaStream_t);

// numbers[i] is how many distinct rows there are up to entry i, it included;
// absent ones do not count. So the last is the number of distinct rows.
cudaError_t number_runs(
    const Sorted& sorted,
    uint32_t* numbers,
    void* scratch,
    size_t scratch_bytes,
    cudaStream_t);

// rows[k] = first_row + the k-th distinct row, ascending.
cudaError_t distinct_rows(
    const Sorted& sorted,
    const uint32_t* numbers,
    int64_t first_row,
    int64_t* rows,
    cudaStream_t);

// place[p] is where the row of the caller's entry p stands among the distinct
// ones; of an absent entry, how many of these there are.
cudaError_t places_among(
    const Sorted& sorted,
    const uint32_t* numbers,
    int64_t* place,
    cudaStream_t);

// ends[o] is how many of the distinct rows are below bounds[o], for `owners`
// bounds on the host, ascending; ends[owners] is how many there are in all.
cudaError_t owner_ends(
    const Sorted& sorted,
    const uint32_t* numbers,
    const int64_t* bounds,
    int64_t owners,
    int64_t* ends,
    cudaStream_t);

}  // namespace tessera::detail::cuda
