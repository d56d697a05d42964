// The memory that processes of one machine share. A process may open its own,
// so that one is enough to test most of it; the collectives' tests over
// processes go through it too.
#include "comm/transport/shared_buffer.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "testing/throws.h"

namespace tessera::detail {
namespace shared_buffer_test {

constexpr size_t kBytes = 8192;

std::unique_ptr<SharedBuffer> buffer() {
  return std::make_unique<SharedBuffer>(SharedRange::create(kBytes));
}

std::string text_at(const PeerProcess& peer, int64_t place, size_t bytes) {
  std::string text(bytes, ' ');
  peer.take(place, text.data(), bytes);
  return text;
}

// TESSERA_SHARED_MEMORY, as a test likes it; what it was afterwards.
class SharedMemorySetting {
 public:
  explicit SharedMemorySetting(const char* megabytes) {
    if (const char* before = std::getenv(kName)) before_ = before;
    set(megabytes);
  }
  ~SharedMemorySetting() { set(before_ ? before_->c_str() : nullptr); }
  SharedMemorySetting(const SharedMemorySetting&) = delete;
  SharedMemorySetting& operator=(const SharedMemorySetting&) = delete;

  // Null: not set.
  static void set(const char* megabytes) {
    if (megabytes != nullptr) {
      setenv(kName, megabytes, 1);
    } else {
      unsetenv(kName);
    }
  }

 private:
  static constexpr const char* kName = "TESSERA_SHARED_MEMORY";
  std::optional<std::string> before_;
};

TEST(SharedBuffer, APieceIsReadWhereItWasPut) {
  const auto own = buffer();
  const auto reader = PeerProcess::open(own->name());
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(reader->running());
  const std::string text = "tesserae";
  const auto place = own->put(text.data(), text.size(), 1);
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(text_at(*reader, *place, text.size()), text);
}

// Pieces that are never read pin their own memory, not that of others.
TEST(SharedBuffer, RoomIsUsedAgainOnceAllHaveReleasedIt) {
  const auto own = buffer();
  const auto reader = PeerProcess::open(own->name());
  const std::string large(own->piece_bytes(), 'x');
  const auto pinned = own->put(large.data(), large.size(), 1);
  ASSERT_TRUE(pinned.has_value());
  const auto second = own->put(large.data(), large.size(), 2);
  ASSERT_TRUE(second.has_value());
  reader->release(*second);
  for (int i = 0; i < 100; ++i) {
    const auto next = own->put(large.data(), large.size(), 1);
    ASSERT_TRUE(next.has_value());
    EXPECT_NE(next, pinned);
    EXPECT_NE(next, second);
    own->release(*next);
  }
  EXPECT_EQ(text_at(*reader, *second, large.size()), large);
  EXPECT_EQ(own->put(large.data(), large.size(), 1), second);
}

TEST(SharedBuffer, IsFullAtSomeTime) {
  const auto own = buffer();
  const std::string large(own->piece_bytes(), 'x');
  int put = 0;
  while (own->put(large.data(), large.size(), 1)) ++put;
  EXPECT_GE(put, 4);
  EXPECT_LE(put, 8);
}

// A thousand pieces of many sizes, read late and in any order: none is
// overwritten before it is read.
TEST(SharedBuffer, PiecesDoNotOverlap) {
  const auto own = buffer();
  const auto reader = PeerProcess::open(own->name());
  struct Waiting {
    int64_t place;
    std::string text;
  };
  std::vector<Waiting> waiting;
  size_t put = 0;
  for (size_t i = 0; i < 1000; ++i) {
    const std::string text(1 + i * 37 % 900, static_cast<char>('a' + i % 26));
    const auto place = own->put(text.data(), text.size(), 1);
    if (place.has_value()) {
      ++put;
      waiting.push_back({*place, text});
    }
    if (waiting.size() > 8 || !place.has_value()) {
      const size_t which = i % waiting.size();
      EXPECT_EQ(
          text_at(*reader, waiting[which].place, waiting[which].text.size()),
          waiting[which].text);
      waiting.erase(waiting.begin() + static_cast<int64_t>(which));
    }
  }
  EXPECT_GT(put, 500U);
}

int open_files() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// However many groups two processes share, they map each other once and keep
// one file for it.
TEST(SharedBuffer, AProcessIsOpenedOnce) {
  const auto own = buffer();
  const auto first = PeerProcess::open(own->name());
  const int files = open_files();
  std::vector<std::shared_ptr<PeerProcess>> more;
  for (int i = 0; i < 50; ++i) more.push_back(PeerProcess::open(own->name()));
  for (const auto& one : more) EXPECT_EQ(one, first);
  EXPECT_EQ(open_files(), files);
}

TEST(SharedBuffer, AChildHasItsOwn) {
  const SharedMemorySetting setting("1");
  const auto own = SharedBuffer::of_this_process();
  ASSERT_NE(own, nullptr);
  EXPECT_EQ(SharedBuffer::of_this_process(), own);
  const pid_t child = fork();
  if (child == 0) {
    const auto its = SharedBuffer::of_this_process();
    _exit(its != nullptr && its != own && its->name() != own->name() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(SharedBuffer::of_this_process(), own);
}

// A process that dies closes nothing; others find out all the same.
TEST(SharedBuffer, OfAProcessThatDied) {
  int names[2];
  ASSERT_EQ(pipe(names), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto its = buffer();
    const auto name = its->name();
    (void)!write(names[1], name.data(), name.size());
    pause();
  }
  std::string name(256, ' ');
  name.resize(read(names[0], name.data(), name.size()));
  const auto peer = PeerProcess::open(name);
  ASSERT_NE(peer, nullptr);
  EXPECT_TRUE(peer->running());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(peer->running());
  close(names[0]);
  close(names[1]);
}

TEST(SharedBuffer, NamesThatLeadNowhere) {
  std::string name;
  {
    const auto range = SharedRange::create(kBytes);
    name = range->name();
    // The same file by another name is not it.
    EXPECT_EQ(SharedRange::open(name + "1"), nullptr);
  }
  EXPECT_EQ(SharedRange::open(name), nullptr);
  EXPECT_EQ(SharedRange::open(""), nullptr);
  EXPECT_EQ(SharedRange::open("1 2"), nullptr);
}

TEST(SharedBuffer, SizeComesFromTheEnvironment) {
  const SharedMemorySetting setting(nullptr);
  EXPECT_EQ(shared_memory_bytes(), size_t{64} << 20);
  SharedMemorySetting::set("0");
  EXPECT_EQ(shared_memory_bytes(), 0U);
  SharedMemorySetting::set("3");
  EXPECT_EQ(shared_memory_bytes(), size_t{3} << 20);
  for (const char* bad : {"", "all", "-1", "2x"}) {
    SharedMemorySetting::set(bad);
    testing::throws_saying<c10::ValueError>(
        "[World] TESSERA_SHARED_MEMORY is the number of MiB",
        [] { shared_memory_bytes(); });
  }
}

}  // namespace shared_buffer_test
}  // namespace tessera::detail
