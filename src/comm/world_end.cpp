#include "comm/world_end.h"

#include <mutex>
#include <vector>

namespace tessera::detail {

namespace {

struct EndHooks {
  std::mutex mutex;
  std::vector<void (*)()> hooks;
};

EndHooks& end_hooks() {
  // Never deleted: a World in a static variable may end after us.
  static auto* const instance = new EndHooks;
  return *instance;
}

}  // namespace

void at_world_end(void (*hook)()) {
  const std::lock_guard<std::mutex> lock(end_hooks().mutex);
  end_hooks().hooks.push_back(hook);
}

void run_world_end_hooks() {
  std::vector<void (*)()> hooks;
  {
    const std::lock_guard<std::mutex> lock(end_hooks().mutex);
    hooks = end_hooks().hooks;
  }
  for (auto* hook : hooks) hook();
}

}  // namespace tessera::detail
