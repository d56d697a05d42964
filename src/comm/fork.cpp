#include "comm/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <vector>

#include "core/leaked.h"

namespace tessera::detail {

namespace {

std::atomic<uint64_t> forks{0};

struct HiddenFiles {
  std::mutex mutex;
  std::vector<int> files;
};

HiddenFiles& hidden() { return leaked<HiddenFiles>(); }

// The lock is held while the process forks: the child gets a whole list, and no
// file that is about to be closed.
void before_fork() { hidden().mutex.lock(); }

void after_fork() { hidden().mutex.unlock(); }

void in_child() {
  forks.fetch_add(1, std::memory_order_relaxed);
  for (const int file : hidden().files) close(file);
  hidden().files.clear();
  hidden().mutex.unlock();
}

// At load: a child must count even if its parent had not asked yet.
[[maybe_unused]] const int registered =
    pthread_atfork(before_fork, after_fork, in_child);

}  // namespace

uint64_t fork_count() { return forks.load(std::memory_order_relaxed); }

void hide_from_children(int file) {
  const std::lock_guard lock(hidden().mutex);
  hidden().files.push_back(file);
}

void show_to_children(int file) {
  const std::lock_guard lock(hidden().mutex);
  std::erase(hidden().files, file);
}

void close_hidden(int file) {
  const std::lock_guard lock(hidden().mutex);
  if (std::erase(hidden().files, file) > 0) close(file);
}

}  // namespace tessera::detail
