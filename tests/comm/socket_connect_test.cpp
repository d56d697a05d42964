// Ranks that connect by TCP, and all the others that do: nothing that comes
// from a socket is believed before it is checked.
#include "comm/transport/socket_connect.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace tessera::detail {
namespace socket_connect_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::UnorderedElementsAre;

constexpr const char* kHere = "127.0.0.1";

// A plain connection, as anybody can make it.
Socket connected(uint16_t port, const char* host = kHere) {
  Socket made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, host, &address.sin_addr);
  const bool good = connect(
                        made.file(),
                        reinterpret_cast<const sockaddr*>(&address),
                        sizeof(address)) == 0;
  return good ? std::move(made) : Socket();
}

void write_to(const Socket& to, const void* bytes, size_t count) {
  EXPECT_EQ(
      send(to.file(), bytes, count, MSG_NOSIGNAL), static_cast<ssize_t>(count));
}

// What is said on the wire.
struct Words {
  uint64_t word;
  uint64_t meeting;
  int64_t from;
  int64_t to;
};

// The hello that a rank would say: taken from one that connects to us.
Words hello_of(const SocketParty& self, int64_t other) {
  Listener trap(kHere);
  std::thread rank([&] {
    connect_to({kHere}, trap.port(), self, other, from_now(milliseconds(300)));
  });
  const int file = trap.release();
  int heard = -1;
  while (heard < 0) heard = accept(file, nullptr, nullptr);
  Words words{};
  EXPECT_EQ(
      recv(heard, &words, sizeof(words), MSG_WAITALL),
      static_cast<ssize_t>(sizeof(words)));
  close(heard);
  close(file);
  rank.join();
  return words;
}

std::vector<int64_t> coordinates(const std::vector<SocketPeer>& peers) {
  std::vector<int64_t> found;
  found.reserve(peers.size());
  for (const auto& peer : peers) found.push_back(peer.coordinate);
  return found;
}

TEST(SocketConnect, FindsTheRightOneAmongTheAddresses) {
  const Listener listener("");
  Socket made;
  std::thread other([&] {
    // Another meeting's rank, and an address where nobody answers.
    EXPECT_FALSE(connect_to(
        {kHere},
        listener.port(),
        {"another meeting", 1},
        0,
        from_now(milliseconds(300))));
    made = connect_to(
        {kHere, "127.0.0.9"},
        listener.port(),
        {"meeting", 1},
        0,
        from_now(seconds(10)));
  });
  const auto peers =
      listener.accept({"meeting", 0}, {1}, from_now(seconds(10)));
  other.join();
  EXPECT_EQ(coordinates(peers), std::vector<int64_t>{1});
  EXPECT_TRUE(made);
  EXPECT_TRUE(
      listener.accept({"meeting", 0}, {1}, from_now(milliseconds(10))).empty());
}

// Silent ones, more than are listened to at a time, those that speak another
// protocol, that say half of a hello, or leave: the ranks come through.
TEST(SocketConnect, StrangersDoNotCountAndDoNotDelay) {
  const auto hello = hello_of({"meeting", 1}, 0);
  const Listener listener(kHere);
  std::vector<Socket> strangers;
  const std::string garbage = "GET / HTTP/1.1\r\nHost: here\r\n\r\n garbage";
  for (int i = 0; i < 200; ++i) {
    strangers.push_back(connected(listener.port()));
    if (i % 4 == 1) {
      write_to(strangers.back(), garbage.data(), garbage.size());
    }
    if (i % 4 == 2) write_to(strangers.back(), &hello, sizeof(hello) / 2);
    if (i % 4 == 3) strangers.back() = Socket();
  }
  std::vector<Socket> made(3);
  std::vector<std::thread> ranks;
  for (int64_t c = 1; c <= 2; ++c) {
    ranks.emplace_back([&, c] {
      made[c] = connect_to(
          {kHere}, listener.port(), {"meeting", c}, 0, from_now(seconds(30)));
    });
  }
  const auto begin = Clock::now();
  const auto peers =
      listener.accept({"meeting", 0}, {1, 2}, from_now(seconds(30)));
  // Silent ones are listened to for seconds.
  EXPECT_LT(Clock::now() - begin, seconds(4));
  for (auto& rank : ranks) rank.join();
  EXPECT_THAT(coordinates(peers), UnorderedElementsAre(1, 2));
  EXPECT_TRUE(made[1] && made[2]);
}

// Coordinates come from the wire: only those that are expected count, and each
// of them once.
TEST(SocketConnect, WrongCoordinatesAreTurnedAway) {
  const auto hello = hello_of({"meeting", 1}, 0);
  EXPECT_EQ(hello.from, 1);
  EXPECT_EQ(hello.to, 0);
  const auto accepted = [&](const Words& words) {
    const Listener listener(kHere);
    const Socket peer = connected(listener.port());
    write_to(peer, &words, sizeof(words));
    // What a rank would say to the welcome.
    auto yes = words;
    yes.word += 2;
    write_to(peer, &yes, sizeof(yes));
    return coordinates(
        listener.accept({"meeting", 0}, {1, 3}, from_now(milliseconds(200))));
  };
  EXPECT_EQ(accepted(hello), std::vector<int64_t>{1});
  for (const int64_t wrong :
       {int64_t{-1},
        int64_t{0},
        int64_t{2},
        int64_t{4},
        INT64_MAX,
        INT64_MIN}) {
    auto words = hello;
    words.from = wrong;
    EXPECT_TRUE(accepted(words).empty()) << wrong;
    words = hello;
    words.to = wrong == 0 ? 1 : wrong;
    EXPECT_TRUE(accepted(words).empty()) << wrong;
    words = hello;
    words.meeting += wrong == 0 ? 1 : static_cast<uint64_t>(wrong);
    EXPECT_TRUE(accepted(words).empty()) << wrong;
    words = hello;
    words.word += wrong == 0 ? 1 : static_cast<uint64_t>(wrong);
    EXPECT_TRUE(accepted(words).empty()) << wrong;
  }
}

// One that is welcome as one rank does not come in as another.
TEST(SocketConnect, ACoordinateDoesNotChange) {
  const auto hello = hello_of({"meeting", 1}, 0);
  const Listener listener(kHere);
  const Socket peer = connected(listener.port());
  write_to(peer, &hello, sizeof(hello));
  auto yes = hello;
  yes.word += 2;
  yes.from = 3;
  write_to(peer, &yes, sizeof(yes));
  EXPECT_TRUE(
      listener.accept({"meeting", 0}, {1, 3}, from_now(milliseconds(200)))
          .empty());
}

// A rank that has connected and given up, as where an address answers late,
// comes again: it counts once, by the connection that it holds.
TEST(SocketConnect, ARankThatComesTwiceCountsOnce) {
  const auto hello = hello_of({"meeting", 1}, 0);
  const Listener listener(kHere);
  {
    const Socket given_up = connected(listener.port());
    write_to(given_up, &hello, sizeof(hello));
  }
  // This one is still open, and its rank does not go on with it.
  const Socket stale = connected(listener.port());
  write_to(stale, &hello, sizeof(hello));
  std::vector<Socket> made(4);
  std::vector<std::thread> ranks;
  for (const int64_t c : {1, 3}) {
    ranks.emplace_back([&, c] {
      if (c == 3) std::this_thread::sleep_for(milliseconds(200));
      made[c] = connect_to(
          {kHere}, listener.port(), {"meeting", c}, 0, from_now(seconds(30)));
    });
  }
  const auto peers =
      listener.accept({"meeting", 0}, {1, 3}, from_now(seconds(30)));
  for (auto& rank : ranks) rank.join();
  ASSERT_THAT(coordinates(peers), UnorderedElementsAre(1, 3));
  for (const auto& peer : peers) {
    const char said = static_cast<char>('a' + peer.coordinate);
    write_to(peer.socket, &said, 1);
    char heard = ' ';
    EXPECT_EQ(recv(made[peer.coordinate].file(), &heard, 1, MSG_WAITALL), 1);
    EXPECT_EQ(heard, said);
  }
}

// One that sends back what it hears is no rank.
TEST(SocketConnect, AnEchoIsNoWelcome) {
  Listener echo(kHere);
  const uint16_t port = echo.port();
  const int file = echo.release();
  std::thread server([&] {
    int one = -1;
    while (one < 0) one = accept(file, nullptr, nullptr);
    char bytes[64];
    const auto got = recv(one, bytes, sizeof(bytes), 0);
    if (got > 0)
      (void)!send(one, bytes, static_cast<size_t>(got), MSG_NOSIGNAL);
    close(file);
    close(one);
  });
  EXPECT_FALSE(
      connect_to({kHere}, port, {"meeting", 1}, 0, from_now(seconds(1))));
  server.join();
}

TEST(Listener, IsReachedOnlyWhereItIsBound) {
  const Listener narrow(kHere);
  EXPECT_TRUE(connected(narrow.port()));
  EXPECT_FALSE(connected(narrow.port(), "127.0.0.2"));
  const Listener wide("");
  EXPECT_TRUE(connected(wide.port()));
  EXPECT_TRUE(connected(wide.port(), "127.0.0.2"));
}

TEST(Listener, LoopbackAddresses) {
  EXPECT_EQ(loopback_of(kHere), kHere);
  EXPECT_EQ(loopback_of("127.0.0.5"), "127.0.0.5");
  EXPECT_EQ(loopback_of("10.0.0.1"), "");
  EXPECT_EQ(loopback_of(""), "");
}

// A peer sees the end of a connection although a child that was forked
// meanwhile goes on.
TEST(Socket, IsNotHeldByForkedChildren) {
  int files[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, files), 0);
  Socket ours(files[0]);
  const Socket theirs(files[1]);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  ours = Socket();
  const timeval patience{5, 0};
  setsockopt(
      theirs.file(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  char byte = ' ';
  EXPECT_EQ(recv(theirs.file(), &byte, 1, 0), 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace socket_connect_test
}  // namespace tessera::detail
