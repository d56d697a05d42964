#include "comm/async_errors.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <utility>

#include "core/leaked.h"

namespace tessera::detail {

namespace {

struct Posted {
  std::mutex mutex;
  std::string text;
};

// Never deleted: the watchdog's thread may outlive static variables.
Posted& posted() { return leaked<Posted>(); }

}  // namespace

std::atomic<bool> async_error_posted{false};

void post_async_error(const std::string& text) {
  const std::lock_guard lock(posted().mutex);
  if (posted().text.empty()) posted().text = text;
  async_error_posted = true;
}

void raise_posted_error() {
  std::string text;
  {
    const std::lock_guard lock(posted().mutex);
    text = std::exchange(posted().text, {});
    async_error_posted = false;
  }
  TORCH_CHECK(text.empty(), text);
}

}  // namespace tessera::detail
