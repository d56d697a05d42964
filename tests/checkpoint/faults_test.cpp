// A save may fail, be cut short or stop at any system call, and the machine may
// lose what was not synced: the old or the new checkpoint is there every time.
#include <fcntl.h>
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <map>
#include <memory>

#include "api/checkpoint/system_calls.h"
#include "run_directory.h"
#include "testing/throws.h"

namespace tessera {
namespace faults_test {

using detail::SystemCalls;
using testing::RunDirectory;
using testing::throws_saying;

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

// Two files of ranks, one tensor larger than a chunk.
TensorMap state_of(const DeviceMesh& mesh, double value) {
  return {
      {"table", full({1024, 300}, value, mesh, {Shard(0)})},
      {"bias", full({7}, value, mesh, {Replicate()})},
      {"plain", torch::full({3}, value)}};
}

// What the newest whole checkpoint holds; throws where it is a mixture.
double loaded_value(const std::string& root, const DeviceMesh& mesh) {
  auto state = state_of(mesh, -1);
  const auto found = load_latest(root, state);
  if (!found) return 0;
  const auto value = state["plain"][0].item<double>();
  for (const auto& [name, tensor] : state) {
    const auto all =
        is_dtensor(tensor) ? DTensor(tensor).full_tensor() : tensor;
    TORCH_CHECK((all == value).all().item<bool>(), name, " is a mixture");
  }
  return value;
}

// Nothing but checkpoints and the lock.
void expect_clean(const std::string& root) {
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const auto name = entry.path().filename().string();
    EXPECT_TRUE(name == ".lock" || name.find('.') == std::string::npos) << name;
  }
}

class CheckpointFaults : public ::testing::Test {
 protected:
  CheckpointFaults() {
    if (!testing::over_processes()) {
      world_.emplace(World::simulate(2));
      mesh_.emplace(init_device_mesh("cpu", {2}));
    }
  }
  const DeviceMesh& mesh() const { return *mesh_; }
  // Over processes calls are counted by each rank for itself: see
  // tests/process.
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

// ---- power loss ----

struct Node {
  bool directory = false;
  std::string data;
  std::string synced_data;
  std::map<std::string, std::shared_ptr<Node>> entries;
  std::map<std::string, std::shared_ptr<Node>> synced_entries;
};

// Does what it is asked, and keeps account of what the disk is sure to have.
class AccountingCalls : public SystemCalls {
 public:
  explicit AccountingCalls(std::string root) : root_(std::move(root)) {
    top_->directory = true;
    detail::set_system_calls(this);
  }
  ~AccountingCalls() override { detail::set_system_calls(nullptr); }

  // Called after each call.
  std::function<void()> after = [] {};

  // Writes what is left if the power fails now. `names_survive`: names have
  // reached the disk though nobody synced them, but no data has.
  void write_remains(const std::string& where, bool names_survive) const {
    write(*top_, where, names_survive);
  }

  int open(const char* path, int flags, mode_t mode) override {
    const int fd = SystemCalls::open(path, flags, mode);
    if (fd < 0) return fd;
    auto [parent, name] = parent_of(path);
    if (parent == nullptr) {
      files_[fd] = top_;
    } else {
      auto& node = parent->entries[name];
      if (!node) node = std::make_shared<Node>();
      files_[fd] = node;
    }
    after();
    return fd;
  }
  ssize_t pwrite(int fd, const void* data, size_t n, off_t at) override {
    const auto written = SystemCalls::pwrite(fd, data, n, at);
    auto& text = files_.at(fd)->data;
    if (text.size() < at + n) text.resize(at + n);
    text.replace(at, n, static_cast<const char*>(data), n);
    after();
    return written;
  }
  int fsync(int fd) override {
    auto& node = *files_.at(fd);
    node.synced_data = node.data;
    node.synced_entries = node.entries;
    after();
    return SystemCalls::fsync(fd);
  }
  int mkdir(const char* path, mode_t mode) override {
    const int result = SystemCalls::mkdir(path, mode);
    auto [parent, name] = parent_of(path);
    if (result == 0 && parent != nullptr) {
      auto node = std::make_shared<Node>();
      node->directory = true;
      parent->entries[name] = node;
    }
    after();
    return result;
  }
  int rename(const char* from, const char* to) override {
    auto [source, old_name] = parent_of(from);
    auto [target, name] = parent_of(to);
    target->entries[name] = source->entries.at(old_name);
    source->entries.erase(old_name);
    const int result = SystemCalls::rename(from, to);
    after();
    return result;
  }
  int exchange(const char* a, const char* b) override {
    auto [first, name_a] = parent_of(a);
    auto [second, name_b] = parent_of(b);
    std::swap(first->entries.at(name_a), second->entries.at(name_b));
    const int result = SystemCalls::exchange(a, b);
    EXPECT_EQ(result, 0);
    after();
    return result;
  }
  int unlink(const char* path) override { return removed(path, true); }
  int rmdir(const char* path) override { return removed(path, false); }

 private:
  int removed(const char* path, bool file) {
    auto [parent, name] = parent_of(path);
    parent->entries.erase(name);
    const int result =
        file ? SystemCalls::unlink(path) : SystemCalls::rmdir(path);
    after();
    return result;
  }

  // Null for the directory of the run and what is above it.
  std::pair<Node*, std::string> parent_of(const std::string& path) const {
    if (path.size() <= root_.size()) return {nullptr, ""};
    const std::filesystem::path relative = path.substr(root_.size() + 1);
    Node* node = top_.get();
    for (const auto& part : relative.parent_path()) {
      node = node->entries.at(part.string()).get();
    }
    return {node, relative.filename().string()};
  }

  static void write(const Node& node, const std::string& to, bool names) {
    if (!node.directory) {
      testing::write_text(to, node.synced_data);
      return;
    }
    std::filesystem::create_directory(to);
    for (const auto& [name, entry] :
         names ? node.entries : node.synced_entries) {
      write(*entry, to + "/" + name, names);
    }
  }

  const std::string root_;
  const std::shared_ptr<Node> top_ = std::make_shared<Node>();
  std::map<int, std::shared_ptr<Node>> files_;
};

TEST_F(CheckpointFaults, PowerLoss) {
  if (!here()) return;
  const RunDirectory run;
  std::filesystem::create_directories(run.path());
  const auto root = run / "run";
  const auto remains = run / "remains";
  std::filesystem::create_directory(root);
  AccountingCalls calls(root);
  const auto value_left = [&](bool names) {
    std::filesystem::remove_all(remains);
    calls.write_remains(remains, names);
    detail::set_system_calls(nullptr);
    const double value = loaded_value(remains, mesh());
    detail::set_system_calls(&calls);
    return value;
  };
  int64_t moments = 0;
  double old_value = 0;
  for (const auto& [step, value] :
       std::vector<std::pair<int64_t, double>>{{1, 1}, {2, 2}, {2, 3}}) {
    calls.after = [&, value = value] {
      ++moments;
      for (const bool names : {false, true}) {
        const double left = value_left(names);
        EXPECT_TRUE(left == old_value || left == value)
            << left << " after " << moments << " calls";
      }
    };
    save(root, state_of(mesh(), value), {.step = step});
    calls.after = [] {};
    // Once save has returned, nothing takes it away.
    for (const bool names : {false, true}) {
      EXPECT_EQ(value_left(names), value);
    }
    old_value = value;
  }
  EXPECT_GE(moments, 40);
}

// ---- files that are damaged ----

class CheckpointDamage : public ::testing::Test {
 protected:
  CheckpointDamage() {
    for (const int64_t step : {1, 2}) {
      save(
          run_.path(),
          state_of(mesh_, static_cast<double>(step)),
          {.step = step});
    }
  }
  // Changes a file of the newest; loading it says so, on every rank, and
  // load_latest takes the one before.
  void expect_found(
      const std::string& file,
      const std::string& text,
      const std::function<void(const std::string&)>& damage) {
    const auto path = run_ / ("step_2/" + file);
    const auto kept = testing::read_text(path);
    run_.once([&] { damage(path); });
    throws_saying<c10::Error>(
        text, [&] { load(run_ / "step_2", state_of(mesh_, 0)); });
    EXPECT_EQ(loaded_value(run_.path(), mesh_), 1);
    run_.once([&] { testing::write_text(path, kept); });
    EXPECT_EQ(loaded_value(run_.path(), mesh_), 2);
  }

  World& world_ = testing::test_world();
  const DeviceMesh mesh_ = init_device_mesh("cpu", {4});
  const RunDirectory run_;
};

TEST_F(CheckpointDamage, FlippedBytes) {
  for (const double where : {0.0, 0.001, 0.5, 0.999}) {
    expect_found("data_0001.safetensors", "", [&](const auto& path) {
      auto text = testing::read_text(path);
      auto& byte = text[static_cast<size_t>(where * text.size())];
      byte = static_cast<char>(byte ^ 1);
      testing::write_text(path, text);
    });
  }
  expect_found(
      "data_0001.safetensors", "part of tensor 'table'", [](const auto& path) {
        auto text = testing::read_text(path);
        text[text.size() / 2] ^= 1;
        testing::write_text(path, text);
      });
  expect_found("manifest.json", "is damaged", [](const auto& path) {
    auto text = testing::read_text(path);
    text[text.size() / 2] ^= 1;
    testing::write_text(path, text);
  });
}

TEST_F(CheckpointDamage, Truncated) {
  expect_found(
      "data_0002.safetensors", "it is truncated", [](const auto& path) {
        std::filesystem::resize_file(
            path, std::filesystem::file_size(path) - 1);
      });
  expect_found("manifest.json", "truncated", [](const auto& path) {
    std::filesystem::resize_file(path, 100);
  });
  expect_found("manifest.json", "truncated", [](const auto& path) {
    std::filesystem::resize_file(path, 0);
  });
}

TEST_F(CheckpointDamage, Missing) {
  expect_found(
      "data_0003.safetensors", "data_0003.safetensors", [](const auto& path) {
        std::filesystem::remove(path);
      });
  expect_found(
      "manifest.json", "manifest.json is missing", [](const auto& path) {
        std::filesystem::remove(path);
      });
}

TEST_F(CheckpointDamage, Foreign) {
  // A file of the other checkpoint: the same layout, other numbers.
  expect_found(
      "data_0000.safetensors", "of another checkpoint", [&](const auto& path) {
        testing::write_text(
            path, testing::read_text(run_ / "step_1/data_0000.safetensors"));
      });
}

TEST_F(CheckpointDamage, NothingIsWhole) {
  run_.once([&] {
    for (const int step : {1, 2}) {
      std::filesystem::remove(run_ / c10::str("step_", step, "/manifest.json"));
    }
  });
  throws_saying<c10::Error>("no checkpoint in", [&] {
    load_latest(run_.path(), state_of(mesh_, 0));
  });
  EXPECT_FALSE(load_latest(run_ / "elsewhere", state_of(mesh_, 0)).has_value());
}

TEST_F(CheckpointDamage, KeepsTheNewest) {
  for (const int64_t step : {3, 4, 5}) {
    save(run_.path(), state_of(mesh_, 1), {.step = step, .keep = 2});
  }
  EXPECT_EQ(
      checkpoints_in(run_.path()),
      (std::vector<std::string>{run_ / "step_5", run_ / "step_4"}));
}

TEST_F(CheckpointDamage, DirectoriesThatCannotBeWritten) {
  run_.once([&] { testing::write_text(run_ / "file", "x"); });
  throws_saying<c10::Error>(
      "[save] cannot", [&] { save(run_ / "file/below", state_of(mesh_, 1)); });
  throws_saying<c10::ValueError>(
      "is not a directory", [&] { save(run_ / "file", state_of(mesh_, 1)); });
  EXPECT_EQ(loaded_value(run_.path(), mesh_), 2);
}

TEST_F(CheckpointDamage, InTheBackground) {
  auto state = state_of(mesh_, 7);
  auto pending = save_async(run_.path(), state, {.step = 7});
  // What is written is what was there.
  for (auto& [name, tensor] : state) tensor.zero_();
  EXPECT_EQ(pending.wait(), run_ / "step_7");
  EXPECT_TRUE(pending.done());
  EXPECT_EQ(loaded_value(run_.path(), mesh_), 7);
  run_.once([&] { testing::write_text(run_ / "file", "x"); });
  // The error comes with the next call, once.
  {
    auto failing = save_async(run_ / "file", state_of(mesh_, 8), {.step = 8});
    throws_saying<c10::ValueError>("is not a directory", [&] {
      save(run_.path(), state_of(mesh_, 9), {.step = 9});
    });
    throws_saying<c10::ValueError>(
        "is not a directory", [&] { failing.wait(); });
  }
  save(run_.path(), state_of(mesh_, 9), {.step = 9});
  EXPECT_EQ(loaded_value(run_.path(), mesh_), 9);
  // Forgotten ones end by themselves.
  save_async(run_.path(), state_of(mesh_, 10), {.step = 10});
  EXPECT_EQ(loaded_value(run_.path(), mesh_), 10);
}

}  // namespace faults_test
}  // namespace tessera
