#include "comm/counting.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "comm/comm_redirect.h"

namespace tessera::detail {

namespace {

struct Observers {
  std::shared_mutex mutex;
  std::vector<CommObserver*> list;
  // Read without the lock: the common case is that nobody listens.
  std::atomic<size_t> count{0};
};

Observers& observers() {
  // Never destroyed: a static observer may outlive any static of ours.
  static auto* instance = new Observers;
  return *instance;
}

thread_local CommCause current_cause;
// Told instead of the others, if there is one.
thread_local CommObserver* only_observer = nullptr;

}  // namespace

void add_comm_observer(CommObserver* observer) {
  auto& all = observers();
  std::unique_lock lock(all.mutex);
  all.list.push_back(observer);
  all.count = all.list.size();
}

void remove_comm_observer(CommObserver* observer) {
  auto& all = observers();
  std::unique_lock lock(all.mutex);
  const auto found = std::find(all.list.begin(), all.list.end(), observer);
  if (found != all.list.end()) all.list.erase(found);
  all.count = all.list.size();
}

bool counting() {
  return observers().count.load(std::memory_order_relaxed) != 0 ||
         only_observer != nullptr;
}

void report(
    std::string_view collective,
    int64_t group_size,
    c10::ArrayRef<int64_t> ranks,
    c10::ArrayRef<int64_t> bytes) {
  auto& all = observers();
  const CommEvent event{
      collective,
      current_cause.op,
      current_cause.arguments,
      group_size,
      ranks,
      bytes};
  if (only_observer != nullptr) {
    only_observer->on_collective(event);
    return;
  }
  // Held while they are told, so that an observer is not told after its removal
  // has returned.
  std::shared_lock lock(all.mutex);
  for (auto* observer : all.list) observer->on_collective(event);
}

CommRedirectGuard::CommRedirectGuard(CommObserver* observer)
    : previous_(only_observer) {
  only_observer = observer;
}

CommRedirectGuard::~CommRedirectGuard() { only_observer = previous_; }

std::string_view current_comm_cause() { return current_cause.op; }

CommCauseGuard::CommCauseGuard(
    std::string_view op, c10::ArrayRef<SpecPtr> arguments)
    : previous_(current_cause) {
  current_cause.op = op;
  if (!arguments.empty()) {
    current_cause.arguments = arguments;
  }
}

CommCauseGuard::~CommCauseGuard() { current_cause = previous_; }

}  // namespace tessera::detail
