// A world without comm/: what tests of values need of one.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "core/process_context.h"

namespace tessera::detail {

// For its lifetime, ranks 0 to size - 1 live here (rank -1), or `rank` alone.
class ScopedProcessContext {
 public:
  explicit ScopedProcessContext(int64_t size, int64_t rank = -1)
      : before_(current_process_context()) {
    static std::atomic<uint64_t> next_id{1'000'000};
    set_current_process_context(ProcessContext{next_id++, size, rank});
  }
  ~ScopedProcessContext() { set_current_process_context(before_); }
  ScopedProcessContext(const ScopedProcessContext&) = delete;
  ScopedProcessContext& operator=(const ScopedProcessContext&) = delete;

 private:
  std::optional<ProcessContext> before_;
};

}  // namespace tessera::detail
