#include "core/process_context.h"

#include <mutex>

#include "core/leaked.h"

namespace tessera::detail {
namespace {

// Of the process, not of the thread: a mesh may be made in any thread, those
// of the autograd engine included.
struct Current {
  std::mutex mutex;
  std::optional<ProcessContext> process_context;
};

Current& current() { return leaked<Current>(); }

}  // namespace

std::optional<ProcessContext> current_process_context() {
  Current& state = current();
  const std::lock_guard lock(state.mutex);
  return state.process_context;
}

void set_current_process_context(
    std::optional<ProcessContext> process_context) {
  Current& state = current();
  const std::lock_guard lock(state.mutex);
  state.process_context = process_context;
}

}  // namespace tessera::detail
