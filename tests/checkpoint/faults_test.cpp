// A save may fail, be cut short or stop at any system call: the old or the new
// checkpoint is there every time.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <tessera/tessera.h>

#include <cerrno>
#include <optional>
#include <string>

#include "api/checkpoint/system_calls.h"
#include "saved_state.h"
#include "testing/run_directory.h"
#include "testing/throws.h"

namespace tessera {
namespace faults_test {

using detail::SystemCalls;
using testing::expect_clean;
using testing::loaded_value;
using testing::RunDirectory;
using testing::state_of;

enum class Fault { Fail, Short, Stop };

class FaultyCalls : public SystemCalls {
 public:
  FaultyCalls(int64_t at, Fault fault, bool exchanges = true)
      : at_(at), fault_(fault), exchanges_(exchanges) {
    detail::set_system_calls(this);
  }
  ~FaultyCalls() override { detail::set_system_calls(nullptr); }

  // Whether the call was reached.
  bool struck() const { return count_ >= at_; }

  int open(const char* path, int flags, mode_t mode) override {
    return strikes() ? -1 : SystemCalls::open(path, flags, mode);
  }
  ssize_t pwrite(int fd, const void* data, size_t n, off_t at) override {
    if (strikes()) return -1;
    const bool cut = fault_ == Fault::Short && count_ == at_;
    return SystemCalls::pwrite(fd, data, cut ? (n + 1) / 2 : n, at);
  }
  int start_writeback(int fd, off_t at, off_t bytes) override {
    return strikes() ? -1 : SystemCalls::start_writeback(fd, at, bytes);
  }
  int fsync(int fd) override { return strikes() ? -1 : SystemCalls::fsync(fd); }
  int close(int fd) override {
    const bool failed = strikes();
    const int result = SystemCalls::close(fd);
    if (failed) errno = EIO;
    return failed ? -1 : result;
  }
  int mkdir(const char* path, mode_t mode) override {
    return strikes() ? -1 : SystemCalls::mkdir(path, mode);
  }
  int rename(const char* from, const char* to) override {
    return strikes() ? -1 : SystemCalls::rename(from, to);
  }
  int exchange(const char* a, const char* b) override {
    if (strikes()) return -1;
    if (exchanges_) return SystemCalls::exchange(a, b);
    errno = ENOSYS;
    return -1;
  }
  int unlink(const char* path) override {
    return strikes() ? -1 : SystemCalls::unlink(path);
  }
  int rmdir(const char* path) override {
    return strikes() ? -1 : SystemCalls::rmdir(path);
  }
  int lock(int fd) override { return strikes() ? -1 : SystemCalls::lock(fd); }

 private:
  bool strikes() {
    ++count_;
    const bool now = fault_ == Fault::Stop   ? count_ >= at_
                     : fault_ == Fault::Fail ? count_ == at_
                                             : false;
    if (now) errno = count_ % 2 == 0 ? EIO : ENOSPC;
    return now;
  }

  const int64_t at_;
  const Fault fault_;
  const bool exchanges_;
  int64_t count_ = 0;
};

class CheckpointFaults : public ::testing::Test {
 protected:
  CheckpointFaults() {
    if (!testing::over_processes()) {
      world_.emplace(World::simulate(2));
      mesh_.emplace(init_device_mesh("cpu", {2}));
    }
  }
  const DeviceMesh& mesh() const { return *mesh_; }
  // Over processes each rank would count its own calls: the kills of
  // python/tests/checkpoint_kills.py come at any of them.
  bool here() const { return mesh_.has_value(); }

  // Saves 2 over 1, with a fault at every call in turn.
  void strike_everywhere(
      Fault fault,
      int64_t old_step,
      int64_t new_step,
      int64_t keep,
      bool exchanges) {
    const RunDirectory run;
    int64_t failures = 0;
    for (int64_t at = 1; at < 1000; ++at) {
      run.reset();
      save(run.path(), state_of(mesh(), 1), {.step = old_step});
      bool thrown = false;
      bool struck = false;
      {
        const FaultyCalls calls(at, fault, exchanges);
        try {
          save(
              run.path(),
              state_of(mesh(), 2),
              {.step = new_step, .keep = keep});
        } catch (const c10::Error& error) {
          thrown = true;
          EXPECT_NE(
              std::string(error.what_without_backtrace()).find("[save] cannot"),
              std::string::npos);
        }
        struck = calls.struck();
      }
      const double value = loaded_value(run.path(), mesh());
      EXPECT_TRUE(value == 2 || (thrown && value == 1))
          << value << " after a fault at call " << at;
      failures += thrown ? 1 : 0;
      // The next save works, and leaves nothing of this one.
      save(run.path(), state_of(mesh(), 3), {.step = 9});
      EXPECT_EQ(loaded_value(run.path(), mesh()), 3);
      expect_clean(run.path());
      if (!struck) {
        EXPECT_GE(at, 15);
        break;
      }
    }
    if (fault == Fault::Short) {
      EXPECT_EQ(failures, 0);
    } else {
      EXPECT_GE(failures, 10);
    }
  }

 private:
  std::optional<World> world_;
  std::optional<DeviceMesh> mesh_;
};

// The disk of one rank is full: its writes fail, and only its.
class FullDisk : public SystemCalls {
 public:
  explicit FullDisk(std::string file) : file_(std::move(file)) {
    detail::set_system_calls(this);
  }
  ~FullDisk() override { detail::set_system_calls(nullptr); }

  int open(const char* path, int flags, mode_t mode) override {
    const int fd = SystemCalls::open(path, flags, mode);
    if (std::string(path).ends_with(file_)) full_ = fd;
    return fd;
  }
  ssize_t pwrite(int fd, const void* data, size_t n, off_t at) override {
    if (fd != full_) return SystemCalls::pwrite(fd, data, n, at);
    errno = ENOSPC;
    return -1;
  }
  int close(int fd) override {
    if (fd == full_) full_ = -1;
    return SystemCalls::close(fd);
  }

 private:
  const std::string file_;
  int full_ = -1;
};

// In both worlds: every rank raises the error of the one, at once or, from the
// background, with the next call; what was there stays, and the next save
// works.
TEST(CheckpointFullDisk, OfOneRank) {
  testing::test_world();
  const auto mesh = init_device_mesh("cpu", {4});
  const RunDirectory run;
  save(run.path(), state_of(mesh, 1), {.step = 1});
  for (const bool asynchronous : {false, true}) {
    for (const auto* file :
         {"/data_0000.safetensors", "/data_0002.safetensors"}) {
      {
        const FullDisk calls(file);
        testing::throws_saying<c10::Error>("No space left on device", [&] {
          if (asynchronous) {
            save_async(run.path(), state_of(mesh, 2), {.step = 2}).wait();
          } else {
            save(run.path(), state_of(mesh, 2), {.step = 2});
          }
        });
      }
      EXPECT_EQ(loaded_value(run.path(), mesh), 1);
      save(run.path(), state_of(mesh, 1), {.step = 1});
      EXPECT_EQ(loaded_value(run.path(), mesh), 1);
      run.once([&] { expect_clean(run.path()); });
    }
  }
}

TEST_F(CheckpointFaults, EveryCallFails) {
  if (here()) strike_everywhere(Fault::Fail, 1, 2, 0, true);
}

TEST_F(CheckpointFaults, EveryWriteIsShort) {
  if (here()) strike_everywhere(Fault::Short, 1, 2, 0, true);
}

TEST_F(CheckpointFaults, StopsAtEveryCall) {
  if (here()) strike_everywhere(Fault::Stop, 1, 2, 1, true);
}

TEST_F(CheckpointFaults, StopsAtEveryCallOfAReplacement) {
  if (here()) strike_everywhere(Fault::Stop, 1, 1, 0, true);
}

TEST_F(CheckpointFaults, StopsAtEveryCallOfAReplacementInTwoSteps) {
  if (here()) strike_everywhere(Fault::Stop, 1, 1, 0, false);
}

}  // namespace faults_test
}  // namespace tessera
