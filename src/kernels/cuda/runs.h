// Sizes that sums over runs of equal rows need (runs.cuh).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::detail::cuda {

// Entries that one group adds up. The order of additions follows from it.
inline constexpr int kChunk = 32;

// A run that crosses more chunks than this is added up by a block.
inline constexpr int kLongRun = 32;

inline int64_t chunks_of(int64_t count) {
  return (count + kChunk - 1) / kChunk;
}

// Bytes of scratch memory for the sums of `count` entries of `width` columns,
// each sum of `sum_bytes` (4, or 8 for double): an entry's row for every 16.
inline size_t run_scratch(int64_t count, int64_t width, size_t sum_bytes) {
  const auto chunks = static_cast<size_t>(chunks_of(count));
  return 2 * chunks * static_cast<size_t>(width) * sum_bytes +
         (chunks + 1) * sizeof(uint32_t);
}

}  // namespace tessera::detail::cuda
