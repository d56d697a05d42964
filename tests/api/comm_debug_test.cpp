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

using ::testing::AllOf;
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
      "op                     pass     collective  ranks  count  bytes sent  "
      "arguments\n"
      "tessera::redistribute  forward  all_gather      4      2         384  "
      "Float[8, 8] on [S(0)]\n"
      "total                                                  2         384\n";
  EXPECT_EQ(comm.generate_comm_debug_tracing_table(), table);
  std::ostringstream out;
  out << comm;
  EXPECT_EQ(out.str(), table);
}

TEST_F(CommDebug, NamesTheLayoutsThatCausedIt) {
  const auto x = sharded(0);
  const auto w = sharded(0);
  const auto columns = sharded(1);
  const CommDebugMode comm;
  torch::mm(x, w);
  torch::mm(x, w);
  torch::mm(w, columns);
  const auto records = comm.get_records();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(
      records[0].arguments, "Float[8, 8] on [S(0)], Float[8, 8] on [S(0)]");
  EXPECT_EQ(records[0].count, 2);
  EXPECT_EQ(
      records[1].arguments, "Float[8, 8] on [S(0)], Float[8, 8] on [S(1)]");
}

TEST_F(CommDebug, BytesByRank) {
  // 8, 8, 8 and 1 rows of one float.
  const auto x = distribute_tensor(torch::ones({25, 1}), mesh(), {Shard(0)});
  const CommDebugMode comm;
  x.full_tensor();
  const auto bytes = comm.get_comm_bytes_by_rank();
  const std::map<int64_t, int64_t> all{
      {0, 3 * 28}, {1, 3 * 28}, {2, 3 * 28}, {3, 3 * 16}};
  if (testing::over_processes()) {
    const int64_t rank = testing::test_world().rank();
    EXPECT_THAT(bytes, ElementsAre(Pair(rank, all.at(rank))));
  } else {
    EXPECT_EQ(bytes, all);
  }
  EXPECT_EQ(comm.get_records()[0].bytes_by_rank, bytes);
  EXPECT_EQ(comm.get_total_bytes(), bytes.begin()->second);
}

// What runs in a scope, and the backward pass of it, is known by its name.
TEST_F(CommDebug, NamesModulesForwardAndBackward) {
  torch::nn::Linear first(8, 8);
  torch::nn::Linear second(8, 8);
  distribute_(first->weight, mesh());
  distribute_(first->bias, mesh());
  distribute_(second->weight, mesh());
  distribute_(second->bias, mesh());
  torch::nn::Sequential model(first, second);
  at::Tensor y = sharded(0).requires_grad_();
  const CommDebugMode comm(*model);
  {
    const ModuleScope outer("mlp");
    {
      const ModuleScope inner("first");
      y = DTensor(first(y)).redistribute({Shard(1)});
    }
    const ModuleScope inner("second");
    y = second(DTensor(y).redistribute({Shard(0)}));
  }
  y.pow(2).sum().backward();
  std::map<std::string, std::string> forward;
  std::map<std::string, std::string> backward;
  for (const auto& record : comm.get_records()) {
    auto& text = (record.backward ? backward : forward)[record.module];
    text += record.op + " " + record.collective + "; ";
  }
  EXPECT_THAT(
      forward["mlp.first"], HasSubstr("tessera::redistribute all_to_all"));
  EXPECT_THAT(
      forward["mlp.second"], HasSubstr("tessera::redistribute all_to_all"));
  EXPECT_EQ(forward.count(""), 0u);
  // The backward pass of a redistribution is where it was asked for.
  EXPECT_THAT(
      backward["mlp.first"], HasSubstr("tessera::redistribute all_to_all"));
  EXPECT_THAT(
      backward["mlp.second"], HasSubstr("tessera::redistribute all_to_all"));
  // Gradients of replicated parameters are summed under the parameters' names.
  EXPECT_THAT(
      backward["0.weight"], HasSubstr("tessera::redistribute all_reduce"));
  EXPECT_THAT(
      comm.generate_comm_debug_tracing_table(),
      AllOf(HasSubstr("  module  "), HasSubstr("  mlp.first  ")));
}

TEST_F(CommDebug, AScopeThatWasOpenBeforeIsKnown) {
  const auto x = sharded(0);
  const ModuleScope scope("head");
  const CommDebugMode comm;
  x.full_tensor();
  EXPECT_EQ(comm.get_records()[0].module, "head");
}

// Straight from the comm layer, where ranks need not agree on the order.
TEST(CommDebugThreads, CollectivesOfAllThreadsAreCounted) {
  const CommDebugMode comm;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      const detail::CommCauseGuard cause(t % 2 == 0 ? "even" : "odd");
      for (int i = 0; i < 100; ++i) {
        detail::report("all_reduce", 4, {0}, {8});
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
