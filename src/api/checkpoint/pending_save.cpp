#include "api/checkpoint/pending_save.h"

#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/blocking_scope.h"
#include "comm/world_end.h"

namespace tessera {

struct PendingSave::Work {
  explicit Work(detail::SaveJob j) : job(std::move(j)) {}

  detail::SaveJob job;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  bool reported = false;
  std::string path;
  std::exception_ptr error;

  void run() {
    std::string where;
    std::exception_ptr thrown;
    try {
      where = job.run();
    } catch (...) {
      thrown = std::current_exception();
    }
    const std::lock_guard<std::mutex> lock(mutex);
    path = std::move(where);
    error = thrown;
    done = true;
    changed.notify_all();
  }

  void wait() {
    const detail::BlockingScope blocking;
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return done; });
  }
};

PendingSave::PendingSave(std::shared_ptr<Work> work) : work_(std::move(work)) {}

std::string PendingSave::wait() {
  work_->wait();
  const std::lock_guard<std::mutex> lock(work_->mutex);
  work_->reported = true;
  if (work_->error) std::rethrow_exception(work_->error);
  return work_->path;
}

bool PendingSave::done() const {
  const std::lock_guard<std::mutex> lock(work_->mutex);
  return work_->done;
}

namespace detail {

namespace {

struct Pending {
  std::mutex mutex;
  std::shared_ptr<PendingSave::Work> work;
};

Pending& pending_save() {
  // Never deleted: the thread of a save may outlive static variables.
  static auto* const instance = new Pending;
  return *instance;
}

std::shared_ptr<PendingSave::Work> current_save() {
  auto& pending = pending_save();
  const std::lock_guard<std::mutex> lock(pending.mutex);
  return pending.work;
}

// A save needs its world, and the process.
void wait_for_current() {
  if (const auto work = current_save()) work->wait();
}

}  // namespace

void finish_pending_save() {
  const auto work = current_save();
  if (!work) return;
  work->wait();
  {
    auto& pending = pending_save();
    const std::lock_guard<std::mutex> lock(pending.mutex);
    if (pending.work == work) pending.work.reset();
  }
  const std::lock_guard<std::mutex> lock(work->mutex);
  if (work->error && !std::exchange(work->reported, true)) {
    std::rethrow_exception(work->error);
  }
}

PendingSave start_save(SaveJob job) {
  static const bool registered = [] {
    at_world_end(&wait_for_current);
    return std::atexit(&wait_for_current) == 0;
  }();
  static_cast<void>(registered);
  auto work = std::make_shared<PendingSave::Work>(std::move(job));
  auto& pending = pending_save();
  const std::lock_guard<std::mutex> lock(pending.mutex);
  std::thread([work] { work->run(); }).detach();
  pending.work = work;
  return PendingSave(work);
}

}  // namespace detail

}  // namespace tessera
