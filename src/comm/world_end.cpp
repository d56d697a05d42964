#include "comm/world_end.h"

#include <mutex>
#include <vector>

#include "core/leaked.h"

namespace tessera::detail {

namespace {

struct EndHooks {
  std::mutex mutex;
  std::vector<void (*)()> hooks;
};

EndHooks& end_hooks() { return leaked<EndHooks>(); }

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
