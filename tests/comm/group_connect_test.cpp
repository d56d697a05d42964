// A group whose other rank is played by the test: one that is slow, that is
// silent, or no rank at all.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <thread>

#include "comm/errors.h"
#include "comm/process/group.h"
#include "comm/process/messages.h"
#include "comm/process/rendezvous.h"
#include "comm/transport/socket_connect.h"

namespace tessera::detail {
namespace group_connect_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint32_t kCall = 1;  // of the first collective

// Rank 0 of two, in a thread of the test, which plays rank 1 over a socket.
class TwoRanks : public ::testing::Test {
 protected:
  void start(milliseconds timeout, std::function<void(Group&, Call)> body) {
    rank_ = std::thread([this, timeout, body = std::move(body)] {
      WaitBoard board(store_, 0, 2);
      GroupRequest request{"cpu [0, 1]", store_, {0, 1}, 0, host_, "", timeout};
      request.board = &board;
      const Call call{CollectiveKind::Barrier, nullptr, -1, timeout};
      try {
        Group group(request, call);
        const std::lock_guard lock(group.mutex());
        body(group, call);
        error_ = "";
      } catch (const c10::Error& error) {
        error_ = error.what_without_backtrace();
      }
    });
    meeting_ = meet(
        store_,
        {0, 1},
        1,
        host_.boot + "\n" + host_.network + "\n\n",
        seconds(20));
    ASSERT_TRUE(meeting_.missing.empty());
    tell_all(meeting_, "opened", 1, "--", seconds(20));
    std::istringstream in(hear(*meeting_.store, "address/0", seconds(20)));
    in >> port_;
  }
  Socket join() {
    return connect_to(
        {"127.0.0.1"}, port_, {meeting_.name, 1}, 0, from_now(seconds(20)));
  }
  std::string error() {
    rank_.join();
    return error_;
  }
  void TearDown() override {
    if (rank_.joinable()) rank_.join();
  }

  // Of one process, but no memory is offered: sockets it is.
  const Host host_ = Host::of_this_process();
  const c10::intrusive_ptr<c10d::Store> store_ =
      c10::make_intrusive<c10d::HashStore>();
  Meeting meeting_;
  uint16_t port_ = 0;

 private:
  std::thread rank_;
  std::string error_ = "not run";
};

bool reaches(const char* host, uint16_t port) {
  const Socket made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, host, &address.sin_addr);
  return connect(
             made.file(),
             reinterpret_cast<const sockaddr*>(&address),
             sizeof(address)) == 0;
}

TEST_F(TwoRanks, OfOneNetworkListenOnlyThere) {
  start(seconds(20), [](Group&, const Call&) {});
  EXPECT_FALSE(reaches("127.0.0.2", port_));
  EXPECT_TRUE(reaches("127.0.0.1", port_));
  const Socket here = join();
  EXPECT_TRUE(here);
  EXPECT_EQ(error(), "");
}

TEST_F(TwoRanks, OneThatDoesNotConnectIsNamed) {
  start(milliseconds(500), [](Group&, const Call&) {});
  EXPECT_TRUE(reaches("127.0.0.1", port_));
  EXPECT_THAT(
      error(),
      AllOf(
          StartsWith("[World::barrier] rank 0 could not connect"),
          HasSubstr("rank 1 did not connect in time")));
}

// What a rank sends: a message of the call, in its frame.
std::string framed(const std::string& contents) {
  MessageTag tag;
  tag.sequence = kCall;
  tag.collective = CollectiveKind::Barrier;
  tag.bytes = static_cast<int64_t>(contents.size());
  int files[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, files), 0);
  std::vector<SocketPeer> peers;
  peers.push_back({0, Socket(files[0])});
  SocketTransport sender(2, std::move(peers));
  const Socket out(files[1]);
  sender.send({0}, tag, contents.data());
  std::string bytes(contents.size() + 1000, ' ');
  const auto got = recv(out.file(), bytes.data(), bytes.size(), 0);
  EXPECT_GT(got, static_cast<ssize_t>(contents.size()));
  bytes.resize(static_cast<size_t>(got));
  return bytes;
}

void receive_all(Group& group, const Call& call, at::Tensor& into) {
  Messages messages(group, call);
  messages.receive(1, into);
  messages.finish();
}

// Longer than the timeout, and never silent for so long.
TEST_F(TwoRanks, AMessageThatMovesHasAllTheTimeItNeeds) {
  const milliseconds timeout(1000);
  const std::string sent(4000, 'x');
  at::Tensor got = at::zeros({4000}, at::kByte);
  start(timeout, [&](Group& group, const Call& call) {
    receive_all(group, call, got);
  });
  const Socket here = join();
  ASSERT_TRUE(here);
  const auto bytes = framed(sent);
  const auto begin = Clock::now();
  constexpr size_t kStep = 100;
  for (size_t at = 0; at < bytes.size(); at += kStep) {
    std::this_thread::sleep_for(milliseconds(50));
    const auto count = std::min(kStep, bytes.size() - at);
    ASSERT_EQ(
        send(here.file(), bytes.data() + at, count, MSG_NOSIGNAL),
        static_cast<ssize_t>(count));
  }
  EXPECT_GT(Clock::now() - begin, timeout + milliseconds(500));
  EXPECT_EQ(error(), "");
  EXPECT_TRUE(at::equal(got, at::full({4000}, int{'x'}, at::kByte)));
}

TEST_F(TwoRanks, ARankThatGoesSilentIsWaitedForAsLongAsTheTimeout) {
  const milliseconds timeout(700);
  at::Tensor got = at::zeros({4000}, at::kByte);
  start(timeout, [&](Group& group, const Call& call) {
    receive_all(group, call, got);
  });
  const Socket here = join();
  const auto bytes = framed(std::string(4000, 'x'));
  std::this_thread::sleep_for(milliseconds(400));
  EXPECT_EQ(send(here.file(), bytes.data(), 1000, MSG_NOSIGNAL), 1000);
  const auto begin = Clock::now();
  const auto text = error();
  EXPECT_GT(Clock::now() - begin, timeout - milliseconds(100));
  EXPECT_LT(Clock::now() - begin, timeout + seconds(5));
  EXPECT_THAT(
      text,
      AllOf(
          StartsWith("[World::barrier] rank 0 waited 7"),
          HasSubstr("for rank 1: Timed out waiting for its message. Check")));
}

// A timeout of longer than the clock can tell is for ever.
TEST_F(TwoRanks, TimeoutsMayBeForEver) {
  at::Tensor got = at::zeros({8}, at::kByte);
  start(milliseconds::max(), [&](Group& group, const Call& call) {
    receive_all(group, call, got);
  });
  const Socket here = join();
  const auto bytes = framed("12345678");
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_GT(send(here.file(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
  EXPECT_EQ(error(), "");
}

// Whatever bytes come after the handshake.
TEST_F(TwoRanks, WhatIsNoMessageIsAnError) {
  at::Tensor got = at::zeros({8}, at::kByte);
  start(seconds(20), [&](Group& group, const Call& call) {
    receive_all(group, call, got);
  });
  const Socket here = join();
  const std::string garbage(100, '\xff');
  EXPECT_EQ(send(here.file(), garbage.data(), 100, MSG_NOSIGNAL), 100);
  EXPECT_THAT(
      error(),
      AllOf(
          HasSubstr("to rank 1: it sent what is no message"),
          Not(HasSubstr("instead of"))));
}

// An error frame that claims to be longer than any.
TEST_F(TwoRanks, AnErrorOfAnyLengthIsRead) {
  for (const int64_t length : {INT64_MAX, INT64_MIN, int64_t{-1}, int64_t{0}}) {
    at::Tensor got = at::zeros({8}, at::kByte);
    start(seconds(20), [&](Group& group, const Call& call) {
      receive_all(group, call, got);
    });
    const Socket here = join();
    auto bytes = framed("12345678");
    const uint64_t error_kind = 0x7e55e7b;
    std::memcpy(bytes.data(), &error_kind, sizeof(error_kind));
    // The length is the last that stands before the contents.
    std::memcpy(bytes.data() + bytes.size() - 16, &length, sizeof(length));
    EXPECT_GT(send(here.file(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    EXPECT_THAT(error(), HasSubstr("it has stopped with this error: "));
  }
}

// What the peers are told of an error: no part of a character.
TEST(Errors, AreCutBetweenCharacters) {
  EXPECT_EQ(shortened("abc", 3), "abc");
  EXPECT_EQ(shortened("abcd", 3), "abc");
  const std::string accents = "a\xc3\xa9\xe2\x82\xac";  // of 1, 2, 3 bytes
  EXPECT_EQ(shortened(accents, 6), accents);
  EXPECT_EQ(shortened(accents, 5), "a\xc3\xa9");
  EXPECT_EQ(shortened(accents, 3), "a\xc3\xa9");
  EXPECT_EQ(shortened(accents, 2), "a");
  EXPECT_EQ(shortened(accents, 0), "");
}

}  // namespace group_connect_test
}  // namespace tessera::detail
