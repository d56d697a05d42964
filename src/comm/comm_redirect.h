// Collectives that are only tried out.
#pragma once

#include "comm/comm_event.h"

namespace tessera::detail {

// While one is alive, what this thread does is told to one observer only.
class CommRedirectGuard {
 public:
  explicit CommRedirectGuard(CommObserver* observer);
  ~CommRedirectGuard();
  CommRedirectGuard(const CommRedirectGuard&) = delete;
  CommRedirectGuard& operator=(const CommRedirectGuard&) = delete;

 private:
  CommObserver* previous_;
};

}  // namespace tessera::detail
