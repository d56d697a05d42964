#include "embedding_bag/bandwidth.h"

#include <c10/util/Exception.h>

#include <chrono>

namespace tessera::bench {

MemoryReader::MemoryReader(int64_t bytes) : words_(bytes / 8, 1) {}

double MemoryReader::gigabytes_per_second() {
  const auto start = std::chrono::steady_clock::now();
  // Several sums, so that no addition waits for the one before.
  uint64_t sums[8] = {};
  const size_t count = words_.size() / 8 * 8;
  for (size_t i = 0; i < count; i += 8) {
    for (size_t k = 0; k < 8; ++k) {
      sums[k] += words_[i + k];
    }
  }
  const std::chrono::duration<double, std::nano> took =
      std::chrono::steady_clock::now() - start;
  for (const uint64_t sum : sums) {
    sum_ += sum;
  }
  TORCH_CHECK(
      sum_ % count == 0, "[bench_embedding_bag] memory was not read whole");
  return static_cast<double>(count * 8) / took.count();
}

}  // namespace tessera::bench
