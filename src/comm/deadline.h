// Points in time until which something may take.
#pragma once

#include <chrono>

namespace tessera::detail {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

// The point in time `wait` after `begin`, or the last that the clock can tell:
// a user's timeout may be longer than that.
inline Deadline after(Deadline begin, std::chrono::milliseconds wait) {
  const auto most = std::chrono::duration_cast<std::chrono::milliseconds>(
      Deadline::max() - begin);
  return wait < most ? begin + wait : Deadline::max();
}

inline Deadline from_now(std::chrono::milliseconds wait) {
  return after(Clock::now(), wait);
}

// Negative once it has passed.
inline std::chrono::milliseconds time_left(Deadline until) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      until - Clock::now());
}

}  // namespace tessera::detail
