// Ranks that wait for each other in different groups, found in their records.
#include "comm/process/wait_circle.h"

#include <gtest/gtest.h>

#include <map>

namespace tessera::detail {
namespace wait_circle_test {

using Records = std::map<int64_t, WaitRecord>;

// A rank whose only thread waits in a call of `group`, of which it has made
// `call` calls, and of each of the others so many.
WaitRecord waiting(
    const std::string& group,
    uint32_t call,
    std::vector<int64_t> awaited,
    const std::map<std::string, uint32_t>& others = {}) {
  WaitRecord record;
  record.beat = 1;
  record.waits.push_back({1, 5, group, call, "all_reduce", std::move(awaited)});
  record.groups[group] = {call, 1};
  for (const auto& [name, calls] : others) record.groups[name] = {calls, 1};
  record.callers["cpu"] = {1};
  return record;
}

std::vector<WaitLink> circle_of(const Records& records, int64_t rank = 0) {
  return find_circle(rank, 1, [&](int64_t of) -> const WaitRecord* {
    const auto found = records.find(of);
    return found == records.end() ? nullptr : &found->second;
  });
}

std::string text_of(const Records& records, int64_t rank = 0) {
  return describe_circle(circle_of(records, rank));
}

// 0 waits for 1 in a row, 1 for 0 in a column.
Records two() {
  return {
      {0,
       waiting("cpu [0, 1]", 3, {1}, {{"cpu [0, 2]", 3}, {"cpu [1, 0]", 1}})},
      {1, waiting("cpu [1, 0]", 2, {0}, {{"cpu [0, 1]", 2}})}};
}

TEST(WaitRecord, IsReadAsItIsWritten) {
  auto record = waiting("cpu [0, 2]", 7, {2, 3}, {{"world [0, 1]", 1}});
  record.stuck = {{0, 5}, {2, 9}};
  record.errors["cpu"] = "[all_reduce] \"lost\"\n  a line, a \\ and more";
  const auto text = record.str();
  const auto read = WaitRecord::parse(text);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->str(), text);
  EXPECT_EQ(read->errors, record.errors);
  EXPECT_EQ(read->stuck, record.stuck);
  ASSERT_EQ(read->waits.size(), 1);
  EXPECT_EQ(read->waits[0].awaited, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(read->groups.at("world [0, 1]").count, 1);
}

TEST(WaitRecord, WhatIsNone) {
  const auto text = waiting("cpu [0, 2]", 7, {2, 3}).str();
  for (size_t length = 0; length + 1 < text.size(); ++length) {
    EXPECT_FALSE(WaitRecord::parse(text.substr(0, length)).has_value())
        << length;
  }
  EXPECT_FALSE(WaitRecord::parse("nonsense").has_value());
  EXPECT_FALSE(WaitRecord::parse("callers \"cpu\" 99999999999\nend\n"));
}

TEST(FindCircle, OfTwo) {
  EXPECT_EQ(
      text_of(two()),
      "it waits in all_reduce (call 2 of cpu [1, 0]) for rank 0");
  EXPECT_EQ(
      text_of(two(), 1),
      "it waits in all_reduce (call 3 of cpu [0, 1]) for rank 1");
}

TEST(FindCircle, OfFourAndWhoWaitsForOneOfThem) {
  Records records;
  const int64_t next[] = {2, 0, 3, 1, 2};
  for (int64_t rank = 0; rank < 5; ++rank) {
    records[rank] = waiting("cpu " + std::to_string(rank), 2, {next[rank]});
    for (int64_t other = 0; other < 5; ++other) {
      if (other != rank) {
        records[rank].groups["cpu " + std::to_string(other)] = {1, 1};
      }
    }
  }
  EXPECT_EQ(circle_of(records).size(), 4);
  EXPECT_EQ(
      text_of(records),
      "it waits in all_reduce (call 2 of cpu 2) for rank 3, which waits in "
      "all_reduce (call 2 of cpu 3) for rank 1, which waits in all_reduce "
      "(call 2 of cpu 1) for rank 0");
  EXPECT_EQ(circle_of(records, 4).size(), 5);
}

// It has sent what it had to: the message is on its way.
TEST(FindCircle, NotWhereTheOtherHasMadeTheCall) {
  auto records = two();
  records[1].groups["cpu [0, 1]"].count = 3;
  EXPECT_TRUE(circle_of(records).empty());
}

TEST(FindCircle, NotWhereTheyAreInTheSameCall) {
  const Records records{
      {0, waiting("cpu [0, 1]", 3, {1})}, {1, waiting("cpu [0, 1]", 3, {0})}};
  EXPECT_TRUE(circle_of(records).empty());
}

TEST(FindCircle, NotWhereOneComputes) {
  auto records = two();
  records[1].waits.clear();
  EXPECT_TRUE(circle_of(records).empty());
  records.erase(1);
  EXPECT_TRUE(circle_of(records).empty());
}

TEST(FindCircle, NotWhereAnotherThreadMayCome) {
  auto records = two();
  records[1].callers["cpu"] = {1, 2};
  EXPECT_TRUE(circle_of(records).empty());
  // Unless that waits as well. Those of other device types have nothing to do
  // with it.
  records[1].waits.push_back({2, 6, "cpu [1, 3]", 1, "all_gather", {3}});
  records[1].callers["meta"] = {3};
  EXPECT_EQ(circle_of(records).size(), 2);
  // The last call of the group was that thread's.
  records[1].groups["cpu [0, 1]"].thread = 2;
  EXPECT_TRUE(circle_of(records).empty());
}

// Whoever is to make the first call of a group may be a thread that has made
// none.
TEST(FindCircle, NotInAGroupThatTheOtherHasNotUsed) {
  auto records = two();
  records[1].groups["cpu [0, 1]"] = {0, 0};
  EXPECT_TRUE(circle_of(records).empty());
  records[1].groups.erase("cpu [0, 1]");
  EXPECT_TRUE(circle_of(records).empty());
}

// Whom it waits for besides may come.
TEST(FindCircle, ThroughOneOfSeveral) {
  auto records = two();
  records[0].waits[0].awaited = {7, 1};
  EXPECT_EQ(circle_of(records).size(), 2);
  EXPECT_EQ(circle_of(records)[0].wait.awaited, (std::vector<int64_t>{1}));
}

TEST(CircleWatch, NeedsThatAllStillWait) {
  auto records = two();
  const auto beat = [&](uint64_t first, uint64_t second) {
    records[0].beat += first;
    records[1].beat += second;
    return circle_of(records);
  };
  CircleWatch watch;
  EXPECT_FALSE(watch.is_real(beat(1, 1)));
  EXPECT_FALSE(watch.is_real(beat(1, 1)));
  EXPECT_FALSE(watch.is_real(beat(1, 1)));
  EXPECT_FALSE(watch.is_real(beat(1, 0)));
  EXPECT_TRUE(watch.is_real(beat(0, 1)));
  // An old record: however often it is read.
  CircleWatch old;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(old.is_real(beat(1, 0)));
}

TEST(CircleWatch, BeginsAnewWithAnotherWait) {
  auto records = two();
  const auto beat = [&] {
    ++records[0].beat;
    ++records[1].beat;
    return circle_of(records);
  };
  CircleWatch watch;
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(watch.is_real(beat()));
  records[1].waits[0].number = 6;
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(watch.is_real(beat()));
  EXPECT_FALSE(watch.is_real({}));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(watch.is_real(beat()));
  EXPECT_TRUE(watch.is_real(beat()));
}

}  // namespace wait_circle_test
}  // namespace tessera::detail
