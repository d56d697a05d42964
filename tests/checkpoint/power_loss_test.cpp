// The machine may lose what was not synced, at any moment of a save: the old or
// the new checkpoint is there every time.
#include <gtest/gtest.h>
#include <tessera/tessera.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/checkpoint/system_calls.h"
#include "saved_state.h"
#include "testing/run_directory.h"

namespace tessera {
namespace power_loss_test {

using detail::SystemCalls;
using testing::loaded_value;
using testing::RunDirectory;
using testing::state_of;

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

TEST(CheckpointPowerLoss, AtEveryCall) {
  // The account is that of one process.
  if (testing::over_processes()) return;
  const auto world = World::simulate(2);
  const auto mesh = init_device_mesh("cpu", {2});
  const RunDirectory run;
  std::filesystem::create_directories(run.path());
  const auto root = run / "run";
  const auto remains = run / "remains";
  std::filesystem::create_directory(root);
  AccountingCalls calls(root);
  const auto value_left = [&](bool names) {
    testing::remove_directory(remains);
    calls.write_remains(remains, names);
    detail::set_system_calls(nullptr);
    const double value = loaded_value(remains, mesh);
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
    save(root, state_of(mesh, value), {.step = step});
    calls.after = [] {};
    // Once save has returned, nothing takes it away.
    for (const bool names : {false, true}) {
      EXPECT_EQ(value_left(names), value);
    }
    old_value = value;
  }
  EXPECT_GE(moments, 40);
}

}  // namespace power_loss_test
}  // namespace tessera
