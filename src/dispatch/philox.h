// Philox 4x32-10: random words as a pure function of (key, counter), so that
// any rank can compute the numbers of its own shard.
#pragma once

#include <array>
#include <cstdint>

namespace tessera::detail {

inline std::array<uint32_t, 4> philox(
    uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  std::array<uint32_t, 4> c = {
      static_cast<uint32_t>(counter_low),
      static_cast<uint32_t>(counter_low >> 32),
      static_cast<uint32_t>(counter_high),
      static_cast<uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kMultiplier0 * c[0];
    const uint64_t p1 = kMultiplier1 * c[2];
    c = {
        static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0,
        static_cast<uint32_t>(p1),
        static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1,
        static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

}  // namespace tessera::detail
