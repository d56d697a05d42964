// Processes that are forked while a checkpoint is being saved: they hold no
// lock, and wait for no thread that they do not have.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <tessera/tessera.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "api/checkpoint/directory.h"
#include "api/checkpoint/system_calls.h"
#include "saved_state.h"
#include "testing/run_directory.h"

namespace tessera {
namespace fork_test {

using testing::RunDirectory;
using testing::state_of;

// A forked process that calls `body` and ends with what it returns.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : id_(::fork()) {
    if (id_ == 0) ::_exit(body());
  }
  ~Child() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Its status, if it ends within seconds.
  std::optional<int> status() {
    for (int i = 0; i < 2000; ++i) {
      int status = 0;
      if (::waitpid(id_, &status, WNOHANG) == id_) {
        id_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return std::nullopt;
  }

 private:
  pid_t id_;
};

[[noreturn]] int sleep_for_ever() {
  while (true) ::pause();
}

// A directory of this rank alone.
class RankDirectory {
 public:
  RankDirectory() : path_(run_ / std::to_string(testing::test_world().rank())) {
    std::filesystem::create_directories(path_);
  }
  const std::string& path() const { return path_; }

 private:
  const RunDirectory run_;
  const std::string path_;
};

TEST(CheckpointForks, LeaveTheLockToTheirParent) {
  const RankDirectory directory;
  std::optional<detail::SaveLock> lock(directory.path());
  const Child child(&sleep_for_ever);
  // It is still held, by this process only.
  EXPECT_THROW(detail::SaveLock{directory.path()}, c10::Error);
  lock.reset();
  EXPECT_NO_THROW(detail::SaveLock{directory.path()});
}

TEST(CheckpointForks, DoNotKeepTheLockOfADeadParent) {
  const RankDirectory directory;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  Child saver([&]() -> int {
    const detail::SaveLock lock(directory.path());
    const pid_t worker = ::fork();
    if (worker == 0) sleep_for_ever();
    const auto written = ::write(ends[1], &worker, sizeof(worker));
    // Dies as it is, with the lock.
    ::_exit(written == sizeof(worker) ? 3 : 4);
  });
  EXPECT_EQ(saver.status(), 3);
  pid_t worker = 0;
  ASSERT_EQ(::read(ends[0], &worker, sizeof(worker)), sizeof(worker));
  EXPECT_NO_THROW(detail::SaveLock{directory.path()});
  ::kill(worker, SIGKILL);
  for (const int end : ends) ::close(end);
}

// Writes wait until they are let go.
class SlowDisk : public detail::SystemCalls {
 public:
  SlowDisk() { detail::set_system_calls(this); }
  ~SlowDisk() override { detail::set_system_calls(nullptr); }

  ssize_t pwrite(int fd, const void* data, size_t n, off_t at) override {
    reached_.store(true);
    while (!free_) std::this_thread::yield();
    return SystemCalls::pwrite(fd, data, n, at);
  }

  void wait_for_write() const {
    while (!reached_) std::this_thread::yield();
  }
  void let_go() { free_ = true; }

 private:
  std::atomic<bool> reached_ = false;
  std::atomic<bool> free_ = false;
};

TEST(CheckpointForks, EndWithoutWaitingForTheSave) {
  testing::test_world();
  const auto mesh = init_device_mesh("cpu", {4});
  const RunDirectory run;
  SlowDisk disk;
  auto pending = save_async(run.path(), state_of(mesh, 1), {.step = 1});
  disk.wait_for_write();
  Child child([&] {
    if (pending.done()) return 1;
    try {
      pending.wait();
      return 2;
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      if (text.find("only the process that saves it") == std::string::npos) {
        return 3;
      }
    }
    // With all that is registered with atexit.
    std::exit(7);
  });
  EXPECT_EQ(child.status(), 7);
  disk.let_go();
  EXPECT_EQ(pending.wait(), run / "step_1");
  // And it is no lasting damage: a child may ask what has come of it.
  Child later([&] { return pending.wait() == run / "step_1" ? 7 : 1; });
  EXPECT_EQ(later.status(), 7);
  save(run.path(), state_of(mesh, 2), {.step = 2});
}

}  // namespace fork_test
}  // namespace tessera
