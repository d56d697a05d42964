// Files that are damaged, missing or of another checkpoint are found, by every
// rank, and load_latest takes the checkpoint before.
#include <gtest/gtest.h>
#include <tessera/tessera.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "saved_state.h"
#include "testing/run_directory.h"
#include "testing/throws.h"

namespace tessera {
namespace damage_test {

using testing::loaded_value;
using testing::RunDirectory;
using testing::state_of;
using testing::throws_saying;

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

}  // namespace damage_test
}  // namespace tessera
