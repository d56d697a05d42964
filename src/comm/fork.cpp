#include "comm/fork.h"

#include <pthread.h>

namespace tessera::detail {

namespace {

std::atomic<uint64_t> forks{0};

// At load: a child must count even if its parent had not asked yet.
[[maybe_unused]] const int registered = pthread_atfork(
    nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

uint64_t fork_count() { return forks.load(std::memory_order_relaxed); }

}  // namespace tessera::detail
