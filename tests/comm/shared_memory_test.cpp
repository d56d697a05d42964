// The memory that processes of one machine share. A process may open its own,
// so that one is enough to test most of it; the collectives' tests over
// processes go through it too.
#include "comm/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "comm/letters.h"
#include "testing/throws.h"

namespace tessera::detail {
namespace shared_memory_test {

using std::chrono::milliseconds;
using Arrival = ReceivedLetters::Arrival;

constexpr size_t kBytes = 4096;

Deadline in(milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

std::unique_ptr<Outbox> outbox() {
  return std::make_unique<Outbox>(SharedRange::create(kBytes));
}

std::string text_at(const Inbox& inbox, int64_t place, size_t bytes) {
  std::string text(bytes, ' ');
  inbox.take(place, text.data(), bytes);
  return text;
}

TEST(SharedMemory, AMessageIsReadWhereItLies) {
  const auto box = outbox();
  const auto reader = Inbox::open(box->name());
  ASSERT_NE(reader, nullptr);
  const std::string text = "tesserae";
  const auto place = box->lay(text.data(), text.size());
  ASSERT_TRUE(place.has_value());
  box->hold(*place);
  EXPECT_EQ(text_at(*reader, *place, text.size()), text);
}

TEST(SharedMemory, RoomIsUsedAgainOnceAllHaveLetGo) {
  const auto box = outbox();
  const auto reader = Inbox::open(box->name());
  const std::string large(3000, 'x');
  const auto first = box->lay(large.data(), large.size());
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(box->lay(large.data(), large.size()).has_value());
  box->hold(*first);
  box->let_go(*first);
  EXPECT_FALSE(box->lay(large.data(), large.size()).has_value());
  EXPECT_EQ(text_at(*reader, *first, large.size()), large);
  EXPECT_EQ(box->lay(large.data(), large.size()), first);
}

// A thousand messages of many sizes, read late and in any order: none is
// overwritten before it is read.
TEST(SharedMemory, MessagesDoNotOverlap) {
  const auto box = outbox();
  const auto reader = Inbox::open(box->name());
  struct Waiting {
    int64_t place;
    std::string text;
  };
  std::vector<Waiting> waiting;
  size_t laid = 0;
  for (size_t i = 0; i < 1000; ++i) {
    const std::string text(1 + i * 37 % 900, static_cast<char>('a' + i % 26));
    const auto place = box->lay(text.data(), text.size());
    if (place.has_value()) {
      ++laid;
      waiting.push_back({*place, text});
    }
    if (waiting.size() > 3 || !place.has_value()) {
      const size_t which = i % waiting.size();
      EXPECT_EQ(
          text_at(*reader, waiting[which].place, waiting[which].text.size()),
          waiting[which].text);
      waiting.erase(waiting.begin() + static_cast<int64_t>(which));
    }
  }
  EXPECT_GT(laid, 500U);
}

TEST(SharedMemory, WhatIsTooLargeFindsNoRoom) {
  const auto box = outbox();
  const std::vector<char> large(kBytes);
  EXPECT_FALSE(box->lay(large.data(), large.size()).has_value());
}

TEST(SharedMemory, NamesThatLeadNowhere) {
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

TEST(SharedMemory, SizeComesFromTheEnvironment) {
  const char* before = std::getenv("TESSERA_SHARED_MEMORY");
  const std::string kept = before != nullptr ? before : "";
  unsetenv("TESSERA_SHARED_MEMORY");
  EXPECT_EQ(shared_memory_bytes(), size_t{64} << 20);
  setenv("TESSERA_SHARED_MEMORY", "0", 1);
  EXPECT_EQ(shared_memory_bytes(), 0U);
  setenv("TESSERA_SHARED_MEMORY", "3", 1);
  EXPECT_EQ(shared_memory_bytes(), size_t{3} << 20);
  for (const char* bad : {"", "all", "-1", "2x"}) {
    setenv("TESSERA_SHARED_MEMORY", bad, 1);
    testing::throws_saying<c10::ValueError>(
        "[World] TESSERA_SHARED_MEMORY is the number of MiB",
        [] { shared_memory_bytes(); });
  }
  if (before != nullptr) {
    setenv("TESSERA_SHARED_MEMORY", kept.c_str(), 1);
  } else {
    unsetenv("TESSERA_SHARED_MEMORY");
  }
}

TEST(Letters, ArriveInOrderOnEachLane) {
  const auto sent = SentLetters::create(3, 2);
  const auto received = ReceivedLetters::open(sent->name(), 1, 2);
  ASSERT_NE(received, nullptr);
  std::thread writer([&] {
    for (int64_t i = 0; i < 2000; ++i) {
      EXPECT_TRUE(sent->post(
          1,
          static_cast<int>(i % 2),
          {.bytes = i, .place = Letter::kInside, .subject = 0, .text = {}},
          in(milliseconds(10000))));
    }
  });
  // More than are kept: the writer waits for the reader.
  for (int64_t i = 0; i < 2000; ++i) {
    const auto lane = static_cast<int>(i % 2);
    ASSERT_EQ(received->wait(lane, in(milliseconds(10000))), Arrival::Came);
    EXPECT_EQ(received->take(lane).bytes, i);
  }
  writer.join();
  EXPECT_EQ(received->wait(0, in(milliseconds(20))), Arrival::Late);
}

TEST(Letters, AReaderThatDoesNotReadIsNotWaitedForForEver) {
  const auto sent = SentLetters::create(1, 1);
  int64_t posted = 0;
  while (sent->post(
      0,
      0,
      {.bytes = 1, .place = 0, .subject = 0, .text = {}},
      in(milliseconds(20)))) {
    ++posted;
  }
  EXPECT_GE(posted, 100);
}

TEST(Letters, WhatWasSentBeforeLeavingIsRead) {
  auto sent = SentLetters::create(1, 1);
  const auto received = ReceivedLetters::open(sent->name(), 0, 1);
  sent->post(
      0,
      0,
      {.bytes = 5, .place = Letter::kInside, .subject = 0, .text = {}},
      in(milliseconds(10)));
  sent.reset();
  EXPECT_EQ(received->wait(0, in(milliseconds(5000))), Arrival::Came);
  EXPECT_EQ(received->take(0).bytes, 5);
  EXPECT_EQ(received->wait(0, in(milliseconds(5000))), Arrival::Gone);
}

// A process that dies closes nothing; the reader finds out all the same.
TEST(Letters, OfAProcessThatDied) {
  int names[2];
  ASSERT_EQ(pipe(names), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto sent = SentLetters::create(1, 1);
    const auto name = sent->name();
    (void)!write(names[1], name.data(), name.size());
    pause();
  }
  std::string name(256, ' ');
  name.resize(read(names[0], name.data(), name.size()));
  const auto received = ReceivedLetters::open(name, 0, 1);
  ASSERT_NE(received, nullptr);
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(100));
    kill(child, SIGKILL);
  });
  EXPECT_EQ(received->wait(0, in(milliseconds(20000))), Arrival::Gone);
  killer.join();
  waitpid(child, nullptr, 0);
  close(names[0]);
  close(names[1]);
}

}  // namespace shared_memory_test
}  // namespace tessera::detail
