#include <tessera/debug.h>
#include <tessera/distribute.h>
#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <thread>

#include "comm/comm_event.h"
#include "comm/counting.h"
#include "testing/worlds.h"

namespace tessera {
namespace comm_debug_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class CommDebug : public ::testing::Test {
 protected:
  DTensor sharded(int64_t dim) const {
    return distribute_tensor(
        torch::arange(64.0).reshape({8, 8}), mesh(), {Shard(dim)});
  }
  const DeviceMesh& mesh() const { return mesh_; }

 private:
  World& world_ = testing::test_world();
  DeviceMesh mesh_ = init_device_mesh("cpu", {4});
};

TEST_F(CommDebug, NothingIsCountedWhereNothingIsSent) {
  const auto x = sharded(0);
  const CommDebugMode comm;
  const auto y = x + x;
  EXPECT_EQ(comm.get_total_counts(), 0);
  EXPECT_EQ(comm.get_total_bytes(), 0);
  EXPECT_THAT(comm.get_comm_counts(), IsEmpty());
  EXPECT_EQ(comm.generate_comm_debug_tracing_table(), "no collectives\n");
}

TEST_F(CommDebug, CountsAndBytesByCollective) {
  const auto x = sharded(0);
  const CommDebugMode comm;
  // 8x8 floats over four ranks: 64 bytes a shard, sent to three others.
  x.redistribute({Replicate()});
  EXPECT_THAT(comm.get_comm_counts(), ElementsAre(Pair("all_gather", 1)));
  EXPECT_THAT(comm.get_comm_bytes(), ElementsAre(Pair("all_gather", 3 * 64)));
  // A quarter of the shard stays.
  x.redistribute({Shard(1)});
  EXPECT_THAT(
      comm.get_comm_bytes(),
      ElementsAre(Pair("all_gather", 3 * 64), Pair("all_to_all", 48)));
  // A pending sum of 256 bytes on each rank.
  const auto sum = DTensor(torch::mm(sharded(1), sharded(0)));
  ASSERT_EQ(to_string(sum.placements()), "[P(sum)]");
  const CommDebugMode reduction;
  sum.full_tensor();
  EXPECT_THAT(
      reduction.get_comm_bytes(), ElementsAre(Pair("all_reduce", 2 * 3 * 64)));
}

TEST_F(CommDebug, NestedScopesEachCount) {
  const auto x = sharded(0);
  const CommDebugMode outer;
  x.full_tensor();
  {
    const CommDebugMode inner;
    x.full_tensor();
    EXPECT_EQ(inner.get_total_counts(), 1);
    EXPECT_EQ(outer.get_total_counts(), 2);
  }
  x.full_tensor();
  EXPECT_EQ(outer.get_total_counts(), 3);
  EXPECT_EQ(outer.get_total_bytes(), 3 * 3 * 64);
}

TEST_F(CommDebug, ResetForgets) {
  const auto x = sharded(0);
  CommDebugMode comm;
  x.full_tensor();
  comm.reset();
  EXPECT_EQ(comm.get_total_counts(), 0);
  x.full_tensor();
  EXPECT_EQ(comm.get_total_counts(), 1);
}

TEST_F(CommDebug, NamesTheOpThatCausedIt) {
  const auto x = sharded(0);
  const auto w = sharded(0);
  const CommDebugMode comm;
  torch::mm(x, w);
  const auto records = comm.get_records();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].op, "aten::mm");
  EXPECT_FALSE(records[0].backward);
  EXPECT_EQ(records[0].group_size, 4);
  EXPECT_EQ(records[0].count, 1);
  EXPECT_EQ(records[0].bytes, comm.get_total_bytes());
}

TEST_F(CommDebug, BackwardIsToldFromForward) {
  auto x = sharded(0).detach().requires_grad_(true);
  const CommDebugMode comm;
  DTensor(x).redistribute({Shard(1)}).pow(2).sum().backward();
  bool forward = false;
  bool backward = false;
  for (const auto& record : comm.get_records()) {
    (record.backward ? backward : forward) |= record.collective == "all_to_all";
  }
  EXPECT_TRUE(forward);
  EXPECT_TRUE(backward);
}

TEST_F(CommDebug, TheTableHasALineForEachOpAndTotals) {
  const auto x = sharded(0);
  const CommDebugMode comm;
  x.full_tensor();
  x.full_tensor();
  const std::string table =
      "op                     pass     collective  ranks  count  bytes sent\n"
      "tessera::redistribute  forward  all_gather      4      2         384\n"
      "total                                                  2         384\n";
  EXPECT_EQ(comm.generate_comm_debug_tracing_table(), table);
  std::ostringstream out;
  out << comm;
  EXPECT_EQ(out.str(), table);
}

// Straight from the comm layer, where ranks need not agree on the order.
TEST(CommDebugThreads, CollectivesOfAllThreadsAreCounted) {
  const CommDebugMode comm;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      const detail::CommCauseGuard cause(t % 2 == 0 ? "even" : "odd");
      for (int i = 0; i < 100; ++i) {
        detail::report("all_reduce", 4, 8);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(comm.get_total_counts(), 400);
  EXPECT_EQ(comm.get_total_bytes(), 3200);
  EXPECT_EQ(comm.get_records().size(), 2u);
}

}  // namespace comm_debug_test
}  // namespace tessera
