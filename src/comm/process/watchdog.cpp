#include "comm/process/watchdog.h"

#include <thread>
#include <utility>

#include "comm/fork.h"

namespace tessera::detail {

namespace {

// How often collectives are looked at.
constexpr std::chrono::milliseconds kInterval{20};

struct WatchdogOfProcess {
  Watchdog* watchdog = nullptr;
  std::mutex mutex;
};

}  // namespace

Watchdog& Watchdog::instance() {
  // A thread does not survive a fork: the child gets a watchdog of its own.
  static PerProcess<WatchdogOfProcess> owned;
  auto& mine = owned.get();
  const std::lock_guard lock(mine.mutex);
  // Never deleted: its thread ends with the process.
  if (mine.watchdog == nullptr) mine.watchdog = new Watchdog;
  return *mine.watchdog;
}

Watchdog::Watchdog() {
  std::thread([this] { run(); }).detach();
}

void Watchdog::watch(Watched collective) {
  const std::lock_guard lock(mutex_);
  watched_.push_back(std::move(collective));
  if (watched_.size() == 1) changed_.notify_one();
}

void Watchdog::forget(const void* owner) {
  const std::lock_guard lock(mutex_);
  watched_.remove_if([&](const Watched& w) { return w.owner == owner; });
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !watched_.empty(); });
    const auto now = Clock::now();
    for (auto it = watched_.begin(); it != watched_.end();) {
      if (it->done()) {
        it = watched_.erase(it);
        continue;
      }
      const std::string failure = it->failure();
      if (failure.empty() && now < it->deadline) {
        ++it;
        continue;
      }
      it->give_up(failure);
      it = watched_.erase(it);
    }
    // Waits in every turn, so that others get at the list.
    changed_.wait_for(lock, kInterval, [] { return false; });
  }
}

}  // namespace tessera::detail
