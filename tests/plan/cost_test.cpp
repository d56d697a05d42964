#include "plan/cost.h"

#include <gtest/gtest.h>

#include "tests/core/scoped_process_context.h"

namespace tessera::detail {
namespace cost_test {

using Kind = Step::Kind;

TEST(StepCost, AGroupOfOneIsFree) {
  for (const Kind kind :
       {Kind::AllGather,
        Kind::AllToAll,
        Kind::AllReduce,
        Kind::ReduceScatter,
        Kind::Slice,
        Kind::ToPartial}) {
    EXPECT_EQ(step_cost(kind, 1 << 20, 1), 0);
    EXPECT_GT(step_cost(kind, 1 << 20, 2), 0);
    EXPECT_GT(step_cost(kind, 0, 2), 0);
    EXPECT_GT(step_cost(kind, 1 << 20, 4), step_cost(kind, 1 << 10, 4));
  }
}

TEST(StepCost, Order) {
  // On the same tensor: `whole` bytes before a reduction, a quarter before a
  // gather.
  constexpr int64_t kWhole = 1 << 22;
  const double gather = step_cost(Kind::AllGather, kWhole / 4, 4);
  const double exchange = step_cost(Kind::AllToAll, kWhole / 4, 4);
  const double reduce = step_cost(Kind::AllReduce, kWhole, 4);
  const double scatter = step_cost(Kind::ReduceScatter, kWhole, 4);
  const double slice = step_cost(Kind::Slice, kWhole, 4);
  EXPECT_LT(slice, exchange);
  EXPECT_LT(exchange, gather);
  EXPECT_EQ(gather, scatter);
  EXPECT_LT(scatter, reduce);
  // An all-reduce is no dearer than its two halves.
  EXPECT_LE(reduce, scatter + gather);
}

TEST(LargestShardBytes, CeilOfEachCut) {
  const ScopedProcessContext world(6);
  const DeviceMesh mesh = init_device_mesh("cpu", {2, 3});
  const auto bytes = [&](const char* placements) {
    return largest_shard_bytes(mesh, {7, 5}, 4, parse_placements(placements));
  };
  EXPECT_EQ(bytes("[R, R]"), 7 * 5 * 4);
  EXPECT_EQ(bytes("[S(0), R]"), 4 * 5 * 4);
  EXPECT_EQ(bytes("[S(0), S(0)]"), 2 * 5 * 4);
  EXPECT_EQ(bytes("[S(0), S(1)]"), 4 * 2 * 4);
  EXPECT_EQ(bytes("[P(sum), S(1)]"), 7 * 2 * 4);
  EXPECT_EQ(
      largest_shard_bytes(mesh, {}, 8, parse_placements("[R, P(sum)]")), 8);
}

}  // namespace cost_test
}  // namespace tessera::detail
