// A range of a file as memory.
#include "api/checkpoint/file_window.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "testing/run_directory.h"

namespace tessera::detail {
namespace file_window_test {

class FileWindows : public ::testing::Test {
 protected:
  void SetUp() override {
    run_.once([&] {
      std::filesystem::create_directories(run_.path());
      for (int64_t i = 0; i < 20'000; ++i) text_ += std::to_string(i);
      testing::write_text(run_ / "file", text_);
    });
    if (text_.empty()) text_ = testing::read_text(run_ / "file");
    fd_ = ::open((run_ / "file").c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd_, 0);
  }
  void TearDown() override { ::close(fd_); }
  int64_t size() const { return static_cast<int64_t>(text_.size()); }

  const testing::RunDirectory run_;
  std::string text_;
  int fd_ = -1;
};

TEST_F(FileWindows, HoldsWhatTheFileHolds) {
  for (const int64_t offset :
       {int64_t{0}, int64_t{1}, int64_t{4096}, size() - 7}) {
    for (const int64_t bytes : {int64_t{1}, int64_t{5000}, size()}) {
      const auto expected = text_.substr(offset, bytes);
      const FileWindow window(
          fd_, offset, static_cast<int64_t>(expected.size()));
      // An old system maps nothing; the file is read there.
      if (window.data() == nullptr) continue;
      EXPECT_EQ(std::string(window.data(), expected.size()), expected);
    }
  }
}

TEST_F(FileWindows, IsEmptyWhereTheFileEndsBefore) {
  EXPECT_EQ(FileWindow(fd_, 0, size() + 8192).data(), nullptr);
  EXPECT_EQ(FileWindow(fd_, size() + 8192, 10).data(), nullptr);
  EXPECT_EQ(FileWindow(-1, 0, 10).data(), nullptr);
}

}  // namespace file_window_test
}  // namespace tessera::detail
