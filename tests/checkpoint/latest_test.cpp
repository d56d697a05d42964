// Which checkpoint of a run is the newest, and loading it while others save.
#include <gtest/gtest.h>
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/checkpoint/manifest.h"
#include "api/checkpoint/system_calls.h"
#include "saved_state.h"
#include "testing/run_directory.h"
#include "testing/throws.h"

namespace tessera {
namespace latest_test {

using testing::loaded_value;
using testing::RunDirectory;
using testing::state_of;
using testing::throws_saying;

class LatestCheckpoint : public ::testing::Test {
 protected:
  void save_step(int64_t step, int64_t keep = 0) const {
    save(
        run_.path(),
        state_of(mesh_, static_cast<double>(step)),
        {.step = step, .keep = keep});
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& path : checkpoints_in(run_.path())) {
      names.push_back(std::filesystem::path(path).filename().string());
    }
    return names;
  }

  World& world_ = testing::test_world();
  const DeviceMesh mesh_ = init_device_mesh("cpu", {4});
  const RunDirectory run_;
};

using Names = std::vector<std::string>;

TEST_F(LatestCheckpoint, IsTheOneThatWasSavedLast) {
  for (const int64_t step : {100, 200, 300}) save_step(step);
  EXPECT_EQ(names(), (Names{"step_300", "step_200", "step_100"}));
  // Training goes back to 100, and on from there.
  load(run_ / "step_100", state_of(mesh_, 0));
  save_step(110, 2);
  EXPECT_EQ(names(), (Names{"step_110", "step_300"}));
  EXPECT_EQ(loaded_value(run_.path(), mesh_), 110);
  save_step(120, 2);
  save_step(130, 2);
  EXPECT_EQ(names(), (Names{"step_130", "step_120"}));
  EXPECT_EQ(loaded_value(run_.path(), mesh_), 130);
  // Once more to the same step: what was newer is older now.
  save_step(120, 2);
  EXPECT_EQ(names(), (Names{"step_120", "step_130"}));
}

TEST_F(LatestCheckpoint, MayBeAsOldAsTheOneInItsPlace) {
  for (const int64_t step : {1, 2, 3}) save_step(step);
  save(run_.path(), state_of(mesh_, 2), {.step = 2, .newest = false});
  EXPECT_EQ(names(), (Names{"step_3", "step_2", "step_1"}));
  // There is none in its place.
  save(run_.path(), state_of(mesh_, 0), {.step = 0, .newest = false});
  EXPECT_EQ(names()[0], "step_0");
}

// Checkpoints of earlier versions do not say which save they are.
TEST_F(LatestCheckpoint, OfEarlierVersionsHasTheLastStep) {
  for (const int64_t step : {3, 2, 10}) save_step(step);
  run_.once([&] {
    for (const int64_t step : {3, 2, 10}) {
      const auto path = run_ / c10::str("step_", step, "/manifest.json");
      auto manifest = detail::parse_manifest(testing::read_text(path), "m");
      EXPECT_GT(manifest.saved, 0);
      manifest.saved = 0;
      testing::write_text(path, detail::write_manifest(manifest));
    }
  });
  EXPECT_EQ(names(), (Names{"step_10", "step_3", "step_2"}));
  save_step(5);
  EXPECT_EQ(names(), (Names{"step_5", "step_10", "step_3", "step_2"}));
  EXPECT_EQ(loaded_value(run_.path(), mesh_), 5);
}

// Counts what a reader has no business to do.
class ReadOnlyCalls : public detail::SystemCalls {
 public:
  ReadOnlyCalls() { detail::set_system_calls(this); }
  ~ReadOnlyCalls() override { detail::set_system_calls(nullptr); }

  int open(const char*, int, mode_t) override { return refuse(); }
  int rename(const char*, const char*) override { return refuse(); }
  int unlink(const char*) override { return refuse(); }
  int lock(int) override { return refuse(); }

  int count() const { return count_; }

 private:
  int refuse() {
    ++count_;
    errno = EACCES;
    return -1;
  }
  int count_ = 0;
};

TEST_F(LatestCheckpoint, TakesNoLock) {
  save_step(1);
  // What an interrupted replacement has moved away is read where it is.
  run_.once([&] {
    std::filesystem::rename(
        run_ / "step_1", run_ / "step_1.old-0123456789abcdef");
  });
  {
    const ReadOnlyCalls calls;
    EXPECT_EQ(loaded_value(run_.path(), mesh_), 1);
    EXPECT_EQ(names(), (Names{"step_1.old-0123456789abcdef"}));
    EXPECT_EQ(calls.count(), 0);
  }
  // The next save puts it back.
  run_.once([] {});
  save_step(2);
  EXPECT_EQ(names(), (Names{"step_2", "step_1"}));
}

// Calls `change` when the first checkpoint has been chosen and its manifest has
// been read.
std::optional<CheckpointInfo> load_while(
    const std::string& root,
    const TensorMap& into,
    const std::function<void()>& change) {
  bool first = true;
  return load_latest(root, [&](const std::string&) {
    if (first) change();
    first = false;
    return into;
  });
}

TEST_F(LatestCheckpoint, IsChosenAgainWhereItIsRemoved) {
  save_step(1);
  save_step(2);
  const auto into = state_of(mesh_, 0);
  const auto found = load_while(run_.path(), into, [&] {
    run_.once([&] { testing::remove_directory(run_ / "step_2"); });
  });
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->step, 1);
  EXPECT_TRUE(found->skipped.empty());
  EXPECT_EQ(into.at("plain")[0].item<double>(), 1);
  // The last one is gone: there is none, and nothing is damaged.
  EXPECT_FALSE(load_while(run_.path(), into, [&] {
                 run_.once([&] { testing::remove_directory(run_ / "step_1"); });
               }).has_value());
}

TEST_F(LatestCheckpoint, IsChosenAgainWhereAnotherProcessSaves) {
  save_step(1);
  const auto into = state_of(mesh_, 0);
  for (const auto& [step, keep] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 1}, {2, 0}}) {
    // The second replaces what is being read.
    const double value =
        10. * static_cast<double>(step) + static_cast<double>(keep);
    const auto found = load_while(run_.path(), into, [&] {
      save(run_.path(), state_of(mesh_, value), {.step = step, .keep = keep});
    });
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->step, step);
    EXPECT_TRUE(found->skipped.empty());
    for (const auto& [name, tensor] : into) {
      const auto all =
          is_dtensor(tensor) ? DTensor(tensor).full_tensor() : tensor;
      EXPECT_TRUE((all == value).all().item<bool>()) << name;
    }
  }
}

// It is not taken for one that was there a moment ago.
TEST_F(LatestCheckpoint, MayBeANameThatLeadsNowhere) {
  save_step(1);
  run_.once([&] {
    std::filesystem::create_symlink(run_ / "nothing", run_ / "step_2");
  });
  throws_saying<c10::ValueError>("there is nothing at", [&] {
    load_latest(run_.path(), state_of(mesh_, 0));
  });
}

TEST_F(LatestCheckpoint, NeedsADirectory) {
  run_.once([&] {
    std::filesystem::create_directories(run_.path());
    testing::write_text(run_ / "file", "x");
  });
  for (const auto& root : {std::string(), run_ / "file"}) {
    throws_saying<c10::ValueError>("expected the directory of a run", [&] {
      load_latest(root, state_of(mesh_, 0));
    });
  }
}

TEST(TrainingLoops, CheckTheirArgumentsWhenTheyAreMade) {
  testing::test_world();
  torch::nn::Linear model(2, 2);
  const auto refused = [&](const char* text,
                           const std::string& root,
                           const TrainingLoopOptions& options) {
    throws_saying<c10::ValueError>(
        text, [&] { TrainingLoop(root, *model, {}, options); });
  };
  refused("got an empty path", "", {.total = 1});
  refused("0 (all) or more to keep", "run", {.total = 1, .keep = -1});
  refused("0 or more steps", "run", {.total = -1});
  refused("every 1 or more", "run", {.total = 1, .every = 0});
}

}  // namespace latest_test
}  // namespace tessera
