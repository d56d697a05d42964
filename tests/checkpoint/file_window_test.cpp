// A range of a file as memory.
#include "api/checkpoint/file_window.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>

#include "api/checkpoint/bus_error.h"
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

// The bytes that a window of [offset, offset + bytes) has; nullopt: read them.
std::optional<std::string> taken(int fd, int64_t offset, int64_t bytes) {
  const FileWindow window(fd, offset, bytes);
  std::string out(bytes, '\0');
  const bool whole = window.take(0, bytes, [&](const char* data) {
    std::memcpy(out.data(), data, bytes);
  });
  if (!whole) return std::nullopt;
  return out;
}

TEST_F(FileWindows, HoldsWhatTheFileHolds) {
  for (const int64_t offset :
       {int64_t{0}, int64_t{1}, int64_t{4096}, size() - 7}) {
    for (const int64_t bytes : {int64_t{1}, int64_t{5000}, size()}) {
      const auto expected = text_.substr(offset, bytes);
      const auto found =
          taken(fd_, offset, static_cast<int64_t>(expected.size()));
      // An old system maps nothing; the file is read there.
      if (found) {
        EXPECT_EQ(*found, expected);
      }
    }
  }
}

TEST_F(FileWindows, IsEmptyWhereTheFileEndsBefore) {
  EXPECT_EQ(taken(fd_, 0, size() + 8192), std::nullopt);
  EXPECT_EQ(taken(fd_, size() + 8192, 10), std::nullopt);
  EXPECT_EQ(taken(-1, 0, 10), std::nullopt);
}

// What is mapped is no longer there when it is taken: pages behind the new end,
// or the rest of the last page, which reads as zeros.
TEST_F(FileWindows, SaysThatTheFileWasTruncated) {
  const auto path = run_ / "shorter";
  for (const int64_t left : {int64_t{0}, int64_t{100}, size() - 1}) {
    run_.once([&] { testing::write_text(path, text_); });
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const FileWindow window(fd, 0, size());
    int64_t sum = 0;
    const auto add = [&](const char* data) {
      for (int64_t i = 0; i < size(); ++i) sum += data[i];
    };
    const bool before = window.take(0, size(), add);
    run_.once([&] { std::filesystem::resize_file(path, left); });
    EXPECT_FALSE(window.take(0, size(), add)) << left;
    // What is left of it is there.
    if (left == size() - 1) {
      EXPECT_EQ(window.take(0, 10, [](const char*) {}), before);
    }
    ::close(fd);
  }
}

void count_signals(int) {}

// The handler of the program is there again, and gets what is not ours.
TEST(BusErrors, LeaveTheHandlerOfTheProgram) {
  struct sigaction mine {};
  mine.sa_handler = &count_signals;
  struct sigaction before {};
  ::sigaction(SIGBUS, &mine, &before);
  EXPECT_TRUE(survives_bus_error([] {}));
  // Sent by somebody, while a read goes on: the handler returns.
  EXPECT_TRUE(survives_bus_error([] { ::raise(SIGBUS); }));
  struct sigaction after {};
  ::sigaction(SIGBUS, &before, &after);
  EXPECT_EQ(after.sa_handler, &count_signals);
}

}  // namespace file_window_test
}  // namespace tessera::detail
