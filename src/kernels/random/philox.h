// Philox 4x32-10: random words as a pure function of (key, counter), so that
// any rank can compute the numbers of its own shard, on any device.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TESSERA_HOST_DEVICE __host__ __device__
#else
#define TESSERA_HOST_DEVICE
#endif

namespace tessera::detail {

struct PhiloxWords {
  uint32_t at[4];
};

TESSERA_HOST_DEVICE inline PhiloxWords philox(
    uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  PhiloxWords c = {
      {static_cast<uint32_t>(counter_low),
       static_cast<uint32_t>(counter_low >> 32),
       static_cast<uint32_t>(counter_high),
       static_cast<uint32_t>(counter_high >> 32)}};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kMultiplier0 * c.at[0];
    const uint64_t p1 = kMultiplier1 * c.at[2];
    c = {
        {static_cast<uint32_t>(p1 >> 32) ^ c.at[1] ^ k0,
         static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c.at[3] ^ k1,
         static_cast<uint32_t>(p0)}};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

}  // namespace tessera::detail
