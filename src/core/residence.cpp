#include "core/residence.h"

#include <mutex>

namespace tessera::detail {
namespace {

// Of the process, not of the thread: a mesh may be made in any thread, those
// of the autograd engine included.
struct Current {
  std::mutex mutex;
  std::optional<Residence> residence;
};

Current& current() {
  // Never deleted: a World in a static variable may end after us.
  static auto* const state = new Current;
  return *state;
}

}  // namespace

std::optional<Residence> current_residence() {
  Current& state = current();
  const std::lock_guard lock(state.mutex);
  return state.residence;
}

void set_current_residence(std::optional<Residence> residence) {
  Current& state = current();
  const std::lock_guard lock(state.mutex);
  state.residence = residence;
}

}  // namespace tessera::detail
