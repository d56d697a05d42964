// Errors of collectives that a GPU carries out after the call has returned.
// Nobody waits for them: who finds one posts it here, and the next op on a
// distributed tensor raises it.
#pragma once

#include <atomic>
#include <string>

namespace tessera::detail {

// Whether an error waits to be raised.
extern std::atomic<bool> async_error_posted;

// Keeps the first of several. Safe in any thread.
void post_async_error(const std::string& text);

// Throws c10::Error with what was posted, and forgets it. Nothing if another
// thread has thrown it meanwhile.
void raise_posted_error();

// Costs one read of memory if nothing was posted.
inline void raise_async_errors() {
  if (async_error_posted.load(std::memory_order_relaxed)) [[unlikely]] {
    raise_posted_error();
  }
}

}  // namespace tessera::detail
