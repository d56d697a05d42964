// How fast this machine reads memory, on one thread.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::bench {

class MemoryReader {
 public:
  // Holds `bytes` bytes: many more than the caches do.
  explicit MemoryReader(int64_t bytes);

  // Reads all of it, once; the bytes of a nanosecond, which are GB/s.
  double gigabytes_per_second();

 private:
  std::vector<uint64_t> words_;
  uint64_t sum_ = 0;  // kept, so that nothing read is left out
};

}  // namespace tessera::bench
