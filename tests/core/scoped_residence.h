// A world without comm/: what tests of values need of one.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "core/residence.h"

namespace tessera::detail {

// For its lifetime, ranks 0 to size - 1 live here (rank -1), or `rank` alone.
class ScopedResidence {
 public:
  explicit ScopedResidence(int64_t size, int64_t rank = -1)
      : before_(current_residence()) {
    static std::atomic<uint64_t> next_id{1'000'000};
    set_current_residence(Residence{next_id++, size, rank});
  }
  ~ScopedResidence() { set_current_residence(before_); }
  ScopedResidence(const ScopedResidence&) = delete;
  ScopedResidence& operator=(const ScopedResidence&) = delete;

 private:
  std::optional<Residence> before_;
};

}  // namespace tessera::detail
