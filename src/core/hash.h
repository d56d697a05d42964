// How core mixes values into 64-bit hashes.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera::detail {

// Spreads every bit of `x` over all 64: sizes and strides are small numbers
// that differ in few bits, and the tables take both ends of a hash.
constexpr uint64_t mix_bits(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return x;
}

// The hash of what gave `hash`, followed by `value`. Order matters.
constexpr uint64_t hash_combine(uint64_t hash, uint64_t value) {
  return mix_bits(hash ^ (value + 0x9e3779b97f4a7c15ULL));
}

// Likewise for a list; its length takes part, so that [1], [2] and [1, 2], []
// differ.
inline uint64_t hash_combine(uint64_t hash, c10::ArrayRef<int64_t> values) {
  hash = hash_combine(hash, static_cast<uint64_t>(values.size()));
  for (const int64_t value : values) {
    hash = hash_combine(hash, static_cast<uint64_t>(value));
  }
  return hash;
}

inline uint64_t hash_combine(uint64_t hash, std::string_view text) {
  hash = hash_combine(hash, static_cast<uint64_t>(text.size()));
  for (const char c : text) {
    hash = hash_combine(hash, static_cast<uint64_t>(static_cast<uint8_t>(c)));
  }
  return hash;
}

}  // namespace tessera::detail
