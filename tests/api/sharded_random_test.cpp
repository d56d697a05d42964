// Random bags over random tables, ranks and options, against one device: the
// number of bags and entries differs from rank to rank.
#include <gtest/gtest.h>

#include "tests/api/sharded_cases.h"

namespace ts = tessera;
using ts::testing::CaseMaker;
using ts::testing::outside;
using ts::testing::over_processes;
using ts::testing::sharded_failure;
using ts::testing::with_mesh;

namespace sharded_random_test {

// Over processes each trial is a dozen messages.
int64_t trials() { return over_processes() ? 100 : 600; }

void try_on(int64_t ranks) {
  ASSERT_TRUE(with_mesh({ranks}, [&](const ts::DeviceMesh& mesh) {
    if (outside(mesh)) {
      return;
    }
    for (int64_t trial = 0; trial < trials(); ++trial) {
      const auto seed = static_cast<uint64_t>(1000 * ranks + trial);
      ASSERT_EQ(sharded_failure(CaseMaker(seed).make(ranks), mesh), "")
          << "seed " << seed;
    }
  }));
}

TEST(ShardedRandom, OneRank) { try_on(1); }
TEST(ShardedRandom, TwoRanks) { try_on(2); }
TEST(ShardedRandom, ThreeRanks) { try_on(3); }
TEST(ShardedRandom, FourRanks) { try_on(4); }

// More ranks than most of the tables have rows or columns.
TEST(ShardedRandom, ManyRanks) {
  if (!over_processes()) {
    try_on(9);
  }
}

// The same cases by each strategy give the same.
TEST(ShardedRandom, WaysAgree) {
  ASSERT_TRUE(with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    for (int64_t trial = 0; trial < trials() / 4; ++trial) {
      auto c = CaseMaker(static_cast<uint64_t>(90000 + trial)).make(4);
      c.dim = 0;
      for (const auto strategy :
           {ts::BagStrategy::Pooled,
            ts::BagStrategy::Rows,
            ts::BagStrategy::Cheapest}) {
        c.options.strategy = strategy;
        ASSERT_EQ(sharded_failure(c, mesh), "");
      }
    }
  }));
}

}  // namespace sharded_random_test
