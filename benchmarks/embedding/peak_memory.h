// How much memory a call takes at its peak, beyond what the process had.
#pragma once

#include <cstdint>
#include <functional>

namespace tessera::bench {

// Bytes, as Linux counts the resident pages of this process.
int64_t peak_memory_of(const std::function<void()>& call);

}  // namespace tessera::bench
