// Both transports, between ranks that are threads of this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport/host.h"
#include "comm/transport/shared_memory.h"
#include "comm/transport/sockets.h"

namespace tessera::detail {
namespace transports_test {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Ends = std::vector<std::unique_ptr<Transport>>;

// `ranks` ranks that share a buffer as small as a test likes.
Ends shared_memory(int64_t ranks, size_t buffer_bytes) {
  const auto buffer =
      std::make_shared<SharedBuffer>(SharedRange::create(buffer_bytes));
  std::vector<SharedOffer> offers(ranks);
  for (auto& offer : offers) {
    offer = {buffer, MessageRings::create(ranks)};
  }
  std::vector<std::vector<SharedPeer>> peers(ranks);
  for (int64_t self = 0; self < ranks; ++self) {
    for (int64_t c = 0; c < ranks; ++c) {
      if (c == self) continue;
      peers[self].push_back(
          {c,
           MessageRings::open(offers[c].rings->name(), ranks),
           PeerProcess::open(buffer->name())});
    }
  }
  Ends ends;
  for (int64_t self = 0; self < ranks; ++self) {
    ends.push_back(std::make_unique<SharedMemoryTransport>(
        self, ranks, std::move(offers[self]), std::move(peers[self])));
  }
  return ends;
}

Ends sockets(int64_t ranks) {
  std::vector<std::vector<SocketPeer>> peers(ranks);
  for (int64_t a = 0; a < ranks; ++a) {
    for (int64_t b = a + 1; b < ranks; ++b) {
      int files[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, files), 0);
      peers[a].push_back({b, Socket(files[0])});
      peers[b].push_back({a, Socket(files[1])});
    }
  }
  Ends ends;
  for (auto& mine : peers) {
    ends.push_back(std::make_unique<SocketTransport>(ranks, std::move(mine)));
  }
  return ends;
}

// Runs the body with each transport.
void with_each(int64_t ranks, const std::function<void(Ends&)>& body) {
  {
    SCOPED_TRACE("shared memory");
    auto ends = shared_memory(ranks, size_t{1} << 20);
    body(ends);
  }
  {
    SCOPED_TRACE("little shared memory");
    auto ends = shared_memory(ranks, size_t{16} << 10);
    body(ends);
  }
  SCOPED_TRACE("sockets");
  auto ends = sockets(ranks);
  body(ends);
}

Deadline in(milliseconds time) { return Clock::now() + time; }

MessageTag tag_of(size_t bytes, uint32_t sequence = 1) {
  MessageTag tag;
  tag.sequence = sequence;
  tag.bytes = static_cast<int64_t>(bytes);
  return tag;
}

void finish(Transport& end) {
  const auto until = in(milliseconds(20000));
  while (!end.idle()) ASSERT_TRUE(end.progress(until));
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const PeerError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Transports, MessagesOfAllSizesArriveInOrder) {
  with_each(3, [](Ends& ends) {
    const std::vector<size_t> sizes{1, 16, 32, 33, 1000, 100'000, 3'000'000, 7};
    std::vector<std::thread> ranks;
    for (int64_t self = 0; self < 3; ++self) {
      ranks.emplace_back([&, self] {
        std::vector<std::string> sent;
        std::vector<std::vector<std::string>> got(3);
        for (const size_t size : sizes) {
          sent.emplace_back(size, static_cast<char>('a' + self));
          for (auto& list : got) list.emplace_back(size, ' ');
        }
        std::vector<int64_t> others;
        for (int64_t c = 0; c < 3; ++c) {
          if (c != self) others.push_back(c);
        }
        auto& end = *ends[self];
        for (size_t i = 0; i < sizes.size(); ++i) {
          const auto tag = tag_of(sizes[i], static_cast<uint32_t>(i));
          for (const int64_t c : others) {
            end.receive(c, tag, got[c][i].data());
          }
          end.send(others, tag, sent[i].data());
        }
        finish(end);
        for (const int64_t c : others) {
          EXPECT_EQ(end.received(c), sizes.size());
          for (size_t i = 0; i < sizes.size(); ++i) {
            EXPECT_EQ(
                got[c][i], std::string(sizes[i], static_cast<char>('a' + c)));
          }
        }
      });
    }
    for (auto& rank : ranks) rank.join();
  });
}

// More than any ring or buffer holds, from both sides at once: who has to wait
// for room reads meanwhile.
TEST(Transports, BothSidesMaySendMoreThanFits) {
  with_each(2, [](Ends& ends) {
    constexpr size_t kMessages = 2000;
    std::vector<std::thread> ranks;
    for (int64_t self = 0; self < 2; ++self) {
      ranks.emplace_back([&, self] {
        const std::string sent(1000, static_cast<char>('a' + self));
        std::vector<std::string> got(kMessages, std::string(1000, ' '));
        auto& end = *ends[self];
        for (size_t i = 0; i < kMessages; ++i) {
          end.send(1 - self, tag_of(1000), sent.data());
        }
        for (auto& text : got) {
          end.receive(1 - self, tag_of(1000), text.data());
        }
        finish(end);
        for (const auto& text : got) {
          EXPECT_EQ(text, std::string(1000, static_cast<char>('b' - self)));
        }
      });
    }
    for (auto& rank : ranks) rank.join();
  });
}

TEST(Transports, AMessageOfAnotherCallIsRefused) {
  const auto altered = [](int which) {
    MessageTag tag = tag_of(8);
    if (which == 0) tag.sequence = 2;
    if (which == 1) tag.collective = CollectiveKind::Scatter;
    if (which == 2) tag.reduction = static_cast<uint8_t>(ReduceOp::Max);
    if (which == 3) tag.dtype = c10::ScalarType::Float;
    if (which == 4) tag.cause = 5;
    if (which == 5) tag.bytes = 16;
    if (which == 6) tag.shapes = 5;
    return tag;
  };
  for (int which = 0; which < 7; ++which) {
    SCOPED_TRACE(which);
    with_each(2, [&](Ends& ends) {
      const std::string sent(16, 'x');
      std::string got(16, ' ');
      ends[0]->send(1, altered(which), sent.data());
      ends[1]->receive(0, tag_of(8), got.data());
      const auto text = error_of([&] { finish(*ends[1]); });
      EXPECT_THAT(
          text,
          AllOf(
              HasSubstr("all_reduce (call 1, Byte, 8 bytes)"),
              HasSubstr(
                  which == 4   ? "for another operation"
                  : which == 6 ? "tensors of different shapes"
                               : " instead of all_reduce"),
              Not(AllOf(HasSubstr("for another"), HasSubstr("instead of")))));
      // The other side learns why.
      ends[1]->close(text);
      ends[0]->receive(1, tag_of(8), got.data());
      EXPECT_EQ(error_of([&] { finish(*ends[0]); }), text);
    });
  }
}

TEST(Transports, NobodyWaitsLongerThanTheDeadline) {
  with_each(2, [](Ends& ends) {
    std::string got(8, ' ');
    ends[0]->receive(1, tag_of(8), got.data());
    const auto begin = Clock::now();
    EXPECT_FALSE(ends[0]->progress(in(milliseconds(120))));
    EXPECT_GE(Clock::now() - begin, milliseconds(115));
    EXPECT_LT(Clock::now() - begin, milliseconds(5000));
    EXPECT_EQ(ends[0]->awaited(), std::vector<int64_t>{1});
  });
}

TEST(Transports, WhatWasSentBeforeLeavingIsRead) {
  with_each(2, [](Ends& ends) {
    const std::string sent(8, 'x');
    ends[0]->send(1, tag_of(8), sent.data());
    ends[0]->close("");
    std::string got(8, ' ');
    ends[1]->receive(0, tag_of(8), got.data());
    finish(*ends[1]);
    EXPECT_EQ(got, sent);
    ends[1]->receive(0, tag_of(8), got.data());
    EXPECT_THAT(
        error_of([&] { finish(*ends[1]); }), HasSubstr("has left the group"));
  });
}

// A send to one that has gone does not wait for the timeout.
TEST(Transports, SendingToOneThatHasLeft) {
  with_each(2, [](Ends& ends) {
    ends[1]->close("");
    const std::string sent(8'000'000, 'x');
    const auto begin = Clock::now();
    EXPECT_NE(
        error_of([&] {
          ends[0]->send(1, tag_of(sent.size()), sent.data());
          finish(*ends[0]);
        }),
        "no error");
    EXPECT_LT(Clock::now() - begin, milliseconds(5000));
  });
}

// Messages follow each other in memory that is shared: while a rank sends a
// long one to another, those who wait for the next one see that it is busy.
TEST(SharedMemoryTransport, ARankThatIsBusyWithAnotherIsNotSilent) {
  auto ends = shared_memory(3, size_t{16} << 10);
  const std::string sent(200'000, 'x');
  std::string first(sent.size(), ' ');
  std::string second(sent.size(), ' ');
  ends[1]->receive(0, tag_of(sent.size()), first.data());
  ends[2]->receive(0, tag_of(sent.size()), second.data());
  ends[0]->send(1, tag_of(sent.size()), sent.data());
  ends[0]->send(2, tag_of(sent.size()), sent.data());
  // The reader takes some; then the sender goes on.
  int steps = 0;
  for (; !ends[1]->idle(); ++steps) {
    const bool moved = ends[1]->progress(in(milliseconds(100))) ||
                       ends[0]->progress(in(milliseconds(100)));
    ASSERT_TRUE(moved);
    ends[0]->progress(in(milliseconds(0)));
    if (second[0] == ' ') {
      EXPECT_TRUE(ends[2]->progress(in(milliseconds(100)))) << steps;
    }
  }
  EXPECT_GT(steps, 10);
  // Now nobody moves anything.
  while (ends[2]->progress(in(milliseconds(10)))) {
  }
  EXPECT_FALSE(ends[2]->progress(in(milliseconds(60))));
}

// Messages that nobody will read give their room back, so that other groups of
// the process are not held up by one that failed.
TEST(SharedMemoryTransport, AFailedGroupTakesNoRoom) {
  constexpr size_t kBytes = size_t{16} << 10;
  for (const bool reader_fails : {true, false}) {
    auto buffer = std::make_shared<SharedBuffer>(SharedRange::create(kBytes));
    std::vector<SharedOffer> offers(2);
    for (auto& offer : offers) offer = {buffer, MessageRings::create(2)};
    std::vector<SharedPeer> first;
    std::vector<SharedPeer> second;
    first.push_back(
        {1,
         MessageRings::open(offers[1].rings->name(), 2),
         PeerProcess::open(buffer->name())});
    second.push_back(
        {0,
         MessageRings::open(offers[0].rings->name(), 2),
         PeerProcess::open(buffer->name())});
    SharedMemoryTransport sender(0, 2, std::move(offers[0]), std::move(first));
    SharedMemoryTransport reader(1, 2, std::move(offers[1]), std::move(second));
    const std::string sent(100'000, 'x');
    sender.send(1, tag_of(sent.size()), sent.data());
    EXPECT_FALSE(sender.idle());
    const std::string piece(buffer->piece_bytes(), 'y');
    EXPECT_FALSE(buffer->put(piece.data(), piece.size(), 1).has_value());
    (reader_fails ? reader : sender).close("no good");
    (reader_fails ? sender : reader).close("");
    int pieces = 0;
    while (buffer->put(piece.data(), piece.size(), 1)) ++pieces;
    EXPECT_GE(pieces, 6);
  }
}

// Not by its name: many machines have the same one.
TEST(Host, IsToldByBootAndNetwork) {
  const auto here = Host::of_this_process();
  EXPECT_FALSE(here.boot.empty());
  EXPECT_FALSE(here.network.empty());
  EXPECT_TRUE(here.same_network(Host::of_this_process()));
  EXPECT_FALSE(here.same_machine({"another", here.network}));
  EXPECT_FALSE(here.same_network({"another", here.network}));
  EXPECT_TRUE(here.same_machine({here.boot, "another"}));
  EXPECT_FALSE(here.same_network({here.boot, "another"}));
  EXPECT_FALSE((Host{"", ""}.same_machine({"", ""})));
  for (const auto& address : own_addresses("")) EXPECT_NE(address, "");
}

TEST(Host, AddressesOfANamedInterface) {
  setenv("TESSERA_SOCKET_IFNAME", "lo", 1);
  EXPECT_EQ(own_addresses("")[0], "127.0.0.1");
  unsetenv("TESSERA_SOCKET_IFNAME");
}

}  // namespace transports_test
}  // namespace tessera::detail
