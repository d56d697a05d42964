// Meetings of ranks in a store; the ranks are threads.
#include "comm/process/rendezvous.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <thread>

#include "comm/process/bounded.h"
#include "testing/throws.h"

namespace tessera::detail {
namespace rendezvous_test {

using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

StorePtr store() { return c10::make_intrusive<c10d::HashStore>(); }

// Ranks 10, 11, ... come to meet, some later than others.
std::vector<Meeting> meet_all(
    const StorePtr& store,
    const std::vector<milliseconds>& late,
    milliseconds timeout,
    const std::string& text = "") {
  std::vector<int64_t> names;
  for (size_t i = 0; i < late.size(); ++i) {
    names.push_back(static_cast<int64_t>(10 + i));
  }
  std::vector<Meeting> meetings(late.size());
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < late.size(); ++i) {
    ranks.emplace_back([&, i] {
      std::this_thread::sleep_for(late[i]);
      meetings[i] =
          meet(store, names, i, text + " " + std::to_string(i), timeout);
    });
  }
  for (auto& rank : ranks) rank.join();
  return meetings;
}

void expect_met(const std::vector<Meeting>& meetings, const std::string& text) {
  for (const auto& meeting : meetings) {
    ASSERT_TRUE(meeting.missing.empty());
    EXPECT_EQ(meeting.name, meetings[0].name);
    ASSERT_EQ(meeting.texts.size(), meetings.size());
    for (size_t i = 0; i < meetings.size(); ++i) {
      EXPECT_EQ(meeting.texts[i], text + " " + std::to_string(i));
    }
  }
}

const milliseconds kNow{0};
const milliseconds kLong{20000};

TEST(Rendezvous, EveryRankHearsEveryText) {
  const auto where = store();
  const std::string text("any\nbytes 3 \0 at all", 20);
  expect_met(meet_all(where, {kNow, kNow, kNow}, kLong, text), text);
  expect_met(meet_all(store(), {kNow}, kLong, text), text);
}

// One after the other in the same store, as worlds of one program or programs
// of one store are: each has a name of its own.
TEST(Rendezvous, MeetingsInOneStoreAreKeptApart) {
  const auto where = store();
  const auto first = meet_all(where, {kNow, kNow}, kLong, "first");
  const auto second = meet_all(where, {kNow, kNow}, kLong, "second");
  expect_met(first, "first");
  expect_met(second, "second");
  EXPECT_NE(first[0].name, second[0].name);
}

TEST(Rendezvous, NamesTheMissing) {
  const auto where = store();
  Meeting leader;
  Meeting follower;
  std::thread first([&] {
    leader = meet(where, {10, 11, 12, 13}, 0, "", milliseconds(300));
  });
  std::thread third([&] {
    follower = meet(where, {10, 11, 12, 13}, 2, "", milliseconds(250));
  });
  first.join();
  third.join();
  EXPECT_EQ(leader.missing, (std::vector<int64_t>{11, 13}));
  EXPECT_EQ(follower.missing, (std::vector<int64_t>{11, 13}));
  EXPECT_EQ(
      meet(store(), {10, 11}, 1, "", milliseconds(100)).missing,
      std::vector<int64_t>{10});
}

// A rank comes when the others have given up; they come again, and find it,
// whichever rank it was.
TEST(Rendezvous, ASecondAttemptConverges) {
  for (size_t late = 0; late < 3; ++late) {
    SCOPED_TRACE(late);
    const auto where = store();
    const std::vector<int64_t> names{10, 11, 12};
    std::vector<Meeting> meetings(3);
    std::vector<std::thread> ranks;
    for (size_t i = 0; i < 3; ++i) {
      ranks.emplace_back([&, i] {
        if (i == late) {
          std::this_thread::sleep_for(milliseconds(400));
        } else {
          const auto failed = meet(where, names, i, "old", milliseconds(250));
          EXPECT_EQ(failed.missing.empty(), false);
        }
        meetings[i] = meet(where, names, i, "new " + std::to_string(i), kLong);
      });
    }
    for (auto& rank : ranks) rank.join();
    expect_met(meetings, "new");
  }
}

// Two programs at one address, or a rank given twice: one of them is in the
// meeting, the other is told.
TEST(Rendezvous, TwoProcessesAsOneRank) {
  const auto where = store();
  const std::vector<int64_t> names{10, 11};
  std::vector<std::string> said(2);
  std::vector<std::thread> twins;
  for (size_t i = 0; i < 2; ++i) {
    twins.emplace_back([&, i] {
      try {
        const auto meeting = meet(
            where, names, 1, "twin " + std::to_string(i), milliseconds(3000));
        said[i] = meeting.missing.empty() ? meeting.texts[1] : "nobody came";
      } catch (const c10::Error& error) {
        said[i] = error.what_without_backtrace();
      }
    });
  }
  // Both have come when the first rank does.
  std::this_thread::sleep_for(milliseconds(300));
  const auto meeting = meet(where, names, 0, "", kLong);
  for (auto& twin : twins) twin.join();
  ASSERT_TRUE(meeting.missing.empty());
  for (size_t i = 0; i < 2; ++i) {
    const bool in = meeting.texts[1] == "twin " + std::to_string(i);
    // Whoever has not even been answered finds that nobody comes.
    const bool told = said[i] == "another process has come as rank 11" ||
                      said[i] == "nobody came";
    EXPECT_TRUE(in ? said[i] == meeting.texts[1] : told) << said[i];
  }
}

TEST(Rendezvous, TextsInAMeeting) {
  const auto where = store();
  std::vector<std::vector<std::string>> told(2);
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < 2; ++i) {
    ranks.emplace_back([&, i] {
      Meeting meeting;
      meeting.store = where;
      meeting.texts.resize(2);
      told[i] = tell_all(
          meeting, "colour", i, i == 0 ? "blue" : "red", milliseconds(5000));
    });
  }
  for (auto& rank : ranks) rank.join();
  for (const auto& heard : told) {
    EXPECT_EQ(heard, (std::vector<std::string>{"blue", "red"}));
  }
}

TEST(Bounded, GivesUpOnWhatDoesNotEnd) {
  EXPECT_EQ(within<int>(from_now(milliseconds(5000)), [] { return 3; }), 3);
  testing::throws_saying<c10::ValueError>("no good", [] {
    within<int>(from_now(milliseconds(5000)), []() -> int {
      TORCH_CHECK_VALUE(false, "no good");
    });
  });
  testing::throws_saying<c10::Error>("does not answer", [] {
    within<int>(from_now(milliseconds(50)), [] {
      std::this_thread::sleep_for(milliseconds(300));
      return 1;
    });
  });
}

}  // namespace rendezvous_test
}  // namespace tessera::detail
