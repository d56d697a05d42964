#include "api/checkpoint/pending_save.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "api/checkpoint/participants.h"
#include "comm/blocking_scope.h"
#include "comm/fork.h"
#include "comm/world_end.h"
#include "core/leaked.h"

namespace tessera {

// The thread of the save sets `path` or `error`, then `done`, and nothing
// afterwards: whoever finds it done reads them without the mutex. That a child
// may do, which was forked when the thread held the mutex, and has no such
// thread.
struct PendingSave::Work {
  explicit Work(detail::SaveJob j) : job(std::move(j)) {}

  detail::SaveJob job;
  const uint64_t forks = detail::fork_count();
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<bool> done = false;
  // Whether somebody has been told of the error.
  std::atomic<bool> reported = false;
  std::string path;
  std::exception_ptr error;

  void run() {
    try {
      path = job.run();
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard<std::mutex> lock(mutex);
    done = true;
    changed.notify_all();
  }

  void wait() {
    if (done) return;
    TORCH_CHECK(
        forks == detail::fork_count(),
        "[PendingSave] this process was forked while the checkpoint ",
        job.path(),
        " was being saved: only the process that saves it can wait for it");
    const detail::BlockingScope blocking;
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return done.load(); });
  }
};

PendingSave::PendingSave(std::shared_ptr<Work> work) : work_(std::move(work)) {}

std::string PendingSave::wait() {
  work_->wait();
  work_->reported = true;
  if (work_->error) std::rethrow_exception(work_->error);
  return work_->path;
}

bool PendingSave::done() const { return work_->done; }

namespace detail {

namespace {

struct Pending {
  std::mutex mutex;
  std::shared_ptr<PendingSave::Work> work;
};

Pending& pending_save() {
  // Never deleted: the thread of a save may outlive static variables. A forked
  // child saves nothing until it starts to.
  return leaked<PerProcess<Pending>>().get();
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

// There is nobody left to throw to.
void report_at_exit() {
  const auto work = current_save();
  if (!work) return;
  work->wait();
  if (!work->error || work->reported.exchange(true)) return;
  const auto error =
      any_local_error_of([&] { std::rethrow_exception(work->error); });
  std::fprintf(
      stderr,
      "[save_async] the program ends, and its last checkpoint, %s, was not "
      "saved: %s\n",
      work->job.path().c_str(),
      error.text.c_str());
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
  if (work->error && !work->reported.exchange(true)) {
    std::rethrow_exception(work->error);
  }
}

PendingSave start_save(SaveJob job) {
  static const bool registered = [] {
    at_world_end(&wait_for_current);
    return std::atexit(&report_at_exit) == 0;
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
