// The last collectives of a process, kept for when one goes wrong.
#include "comm/flight_recorder.h"

#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "comm/collectives.h"
#include "comm/comm_event.h"
#include "testing/worlds.h"

namespace tessera::detail {
namespace flight_recorder_test {

int64_t lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

int64_t occurrences(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

Flight begin(
    uint32_t group,
    uint32_t sequence,
    const char* collective,
    const std::string& cause) {
  return {
      group, sequence, collective, 16, cause, std::chrono::steady_clock::now()};
}

TEST(FlightRecorder, KeepsTheLast) {
  const auto group = new_flight_group("kept [0, 1]", {0, 1});
  const auto early = begin(group, 0, "broadcast", "");
  for (uint32_t i = 0; i < 2000; ++i) {
    begin(group, i, "all_reduce", "aten::mm").end(false);
  }
  // Its place belongs to another one.
  early.end(true);
  const auto last = last_flights(8);
  EXPECT_EQ(lines(last), 8);
  EXPECT_TRUE(last.ends_with(
      "all_reduce (call 1999 of kept [0, 1], 16 bytes, for aten::mm), done"))
      << last;
  const auto json = flight_json();
  EXPECT_EQ(occurrences(json, "\"record_id\""), 1024);
  EXPECT_EQ(occurrences(json, "\"profiling_name\": \"gloo:all_reduce\""), 1024);
  EXPECT_EQ(occurrences(json, "\"state\": \"completed\""), 1024);
  EXPECT_NE(json.find("\"ranks\": \"[0, 1]\""), std::string::npos);
}

TEST(FlightRecorder, SaysWhatIsUnderWayAndWhatHasFailed) {
  const auto group = new_flight_group("states [0, 1]", {0, 1});
  {
    const FlightScope scope(
        begin(group, 1, "broadcast", std::string(100, 'x')));
    const auto last = last_flights(1);
    EXPECT_TRUE(last.ends_with("), under way")) << last;
    EXPECT_NE(last.find("for " + std::string(47, 'x') + ")"), std::string::npos)
        << last;
    EXPECT_NE(flight_json().find("\"state\": \"started\""), std::string::npos);
  }
  EXPECT_TRUE(last_flights(1).ends_with("), done"));
  try {
    const FlightScope scope(begin(group, 2, "broadcast", ""));
    TORCH_CHECK(false, "lost");
  } catch (const c10::Error&) {
  }
  EXPECT_TRUE(last_flights(1).ends_with("16 bytes), failed"))
      << last_flights(1);
  EXPECT_NE(flight_json().find("\"failed\": true"), std::string::npos);
}

TEST(FlightRecorder, GroupsOfOneNameAreToldApart) {
  const auto first = new_flight_group("again [0, 1]", {0, 1});
  const auto second = new_flight_group("again [0, 1]", {0, 1});
  EXPECT_NE(first, second);
  begin(second, 1, "all_gather", "").end(false);
  EXPECT_NE(last_flights(1).find("of again [0, 1] (2), "), std::string::npos);
}

TEST(FlightRecorder, IsReadWhileOthersWrite) {
  const auto group = new_flight_group("busy [0, 1]", {0, 1});
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (uint32_t i = 0; !stop; ++i) {
      begin(group, i, "all_reduce", "busy::" + std::string(20, 'a' + i % 26))
          .end(false);
    }
  });
  for (int i = 0; i < 50; ++i) {
    const auto text = last_flights(1000);
    // Never a half of one op and a half of another.
    for (size_t at = text.find("busy::"); at != std::string::npos;
         at = text.find("busy::", at + 1)) {
      EXPECT_EQ(text.substr(at + 6, 20), std::string(20, text[at + 6]));
    }
  }
  stop = true;
  writer.join();
}

TEST(FlightRecorder, CollectivesAreRecorded) {
  testing::with_mesh({4}, [](const DeviceMesh& mesh) {
    // A simulated world sends no messages.
    if (mesh.simulated()) return;
    const CommCauseGuard guard("aten::test");
    const Shards shards{at::ones({6}, at::kFloat)};
    collectives(mesh).all_reduce({mesh, 0}, shards, ReduceOp::Sum);
    const auto last = last_flights(1);
    EXPECT_NE(last.find("all_reduce (call "), std::string::npos) << last;
    EXPECT_NE(last.find("[0, 1, 2, 3]"), std::string::npos) << last;
    EXPECT_NE(last.find(", 24 bytes"), std::string::npos) << last;
    EXPECT_NE(last.find("for aten::test), done"), std::string::npos) << last;
  });
}

}  // namespace flight_recorder_test
}  // namespace tessera::detail
