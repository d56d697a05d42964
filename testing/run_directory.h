// A directory of its own for a test, the same on all ranks; removed at the end.
#pragma once

#include <ftw.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "testing/worlds.h"

namespace tessera::testing {

// Removes a directory and all that is in it. std::filesystem::remove_all ends
// programs that link a CUDA libtorch: libtorch.so exports a copy of it which
// calls a function that no library has.
inline void remove_directory(const std::string& path) {
  const auto remove = [](const char* name, const struct stat*, int, FTW*) {
    return std::remove(name);
  };
  ::nftw(path.c_str(), remove, /*descriptors=*/16, FTW_DEPTH | FTW_PHYS);
}

class RunDirectory {
 public:
  RunDirectory() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    const char* port = std::getenv("MASTER_PORT");
    path_ =
        (std::filesystem::temp_directory_path() /
         ("tessera_" +
          (over_processes() && port != nullptr ? std::string(port)
                                               : std::to_string(::getpid())) +
          "_" + test->test_suite_name() + "_" + test->name()))
            .string();
    reset();
  }
  ~RunDirectory() {
    if (over_processes()) test_world().barrier();
    if (leads()) remove_directory(path_);
  }
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  // Nothing is there any more.
  void reset() const {
    if (over_processes()) test_world().barrier();
    if (leads()) remove_directory(path_);
    if (over_processes()) test_world().barrier();
  }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const {
    return path_ + "/" + name;
  }
  static bool leads() { return !over_processes() || test_world().rank() == 0; }
  // Calls `change` on rank 0, while the others wait.
  template <typename F>
  void once(const F& change) const {
    if (over_processes()) test_world().barrier();
    if (leads()) change();
    if (over_processes()) test_world().barrier();
  }

 private:
  std::string path_;
};

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
}

}  // namespace tessera::testing
