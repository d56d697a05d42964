// Names that are not files, and files that are truncated while they are mapped.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "api/checkpoint/mapped.h"
#include "api/checkpoint/source.h"
#include "saved_state.h"
#include "testing/run_directory.h"
#include "testing/throws.h"

namespace tessera {
namespace odd_files_test {

using testing::RunDirectory;
using testing::state_of;
using testing::throws_saying;

class OddFiles : public ::testing::Test {
 protected:
  OddFiles() {
    run_.once([&] { std::filesystem::create_directories(run_.path()); });
  }
  // A pipe that nobody writes to.
  void make_pipe(const std::string& name) const {
    run_.once([&] {
      std::filesystem::remove(run_ / name);
      EXPECT_EQ(::mkfifo((run_ / name).c_str(), 0600), 0);
    });
  }
  void load_refused(const std::string& path, const std::string& file) const {
    throws_saying<c10::Error>(file + ": it is a directory, a pipe", [&] {
      load(path, state_of(mesh_, 0));
    });
  }

  World& world_ = testing::test_world();
  const DeviceMesh mesh_ = init_device_mesh("cpu", {4});
  const RunDirectory run_;
};

TEST_F(OddFiles, PipesAreNotWaitedFor) {
  for (const auto* name :
       {"model.safetensors", "model.safetensors.index.json", "manifest.json"}) {
    make_pipe(name);
    load_refused(run_.path(), run_ / name);
    run_.once([&] { std::filesystem::remove(run_ / name); });
  }
  make_pipe("any");
  load_refused(run_ / "any", run_ / "any");
  load_refused("/dev/null", "/dev/null");
  // A file that the manifest names, and one that the index does.
  save(run_.path(), state_of(mesh_, 1), {.step = 1});
  make_pipe("step_1/data_0002.safetensors");
  throws_saying<c10::Error>("part of tensor 'table': it is a directory", [&] {
    load(run_ / "step_1", state_of(mesh_, 0));
  });
  run_.once([&] {
    testing::write_text(
        run_ / "model.safetensors.index.json",
        R"({"weight_map": {"x": "any"}})");
  });
  load_refused(run_.path(), run_ / "any");
}

// The file is shorter than when it was opened, at any moment after that.
TEST_F(OddFiles, TruncatedBeforeTheyAreMapped) {
  const auto table = torch::rand({1024, 1024});
  save(run_.path(), {{"table", table}}, {.step = 1});
  const auto file = run_ / "step_1/data_0000.safetensors";
  const auto whole = testing::read_text(file);
  for (const int64_t left : {int64_t{0}, int64_t{4096}, int64_t{5'000}}) {
    run_.once([&] { testing::write_text(file, whole); });
    const detail::Source source(run_ / "step_1");
    source.file(0, "table");
    run_.once([&] { std::filesystem::resize_file(file, left); });
    throws_saying<c10::Error>("'table', was truncated", [&] {
      detail::map_tensor(
          source, "table", source.manifest().tensors.at("table"));
    });
    // And the bytes that are read.
    throws_saying<c10::Error>("it is truncated", [&] {
      std::string into(1 << 20, '\0');
      source.read(0, 1 << 20, into.data(), 1 << 20, "table");
    });
  }
}

// What is mapped is saved, or merged, when its file has gone.
TEST_F(OddFiles, TruncatedBeforeMappedTensorsAreSaved) {
  // One large tensor goes to the file as it is, small ones are put together.
  const TensorMap state{
      {"table", torch::rand({1024, 1024})}, {"row", torch::rand({100})}};
  save(run_.path(), state, {.step = 1});
  for (const auto* name : {"table", "row"}) {
    run_.once([&] {
      std::filesystem::copy(
          run_ / "step_1",
          run_ / "copy",
          std::filesystem::copy_options::recursive |
              std::filesystem::copy_options::overwrite_existing);
    });
    const auto mapped =
        load_plain(run_ / "copy", {.names = {name}, .mmap = true});
    run_.once([&] {
      std::filesystem::resize_file(run_ / "copy/data_0000.safetensors", 0);
    });
    throws_saying<c10::Error>("mapped from a file that was truncated", [&] {
      save(run_.path(), mapped, {.step = 2});
    });
  }
  // Nothing is left of it.
  run_.once([&] { testing::remove_directory(run_ / "copy"); });
  EXPECT_EQ(checkpoints_in(run_.path()).size(), 1);
}

}  // namespace odd_files_test
}  // namespace tessera
