// What torch.distributed._shard's embedding_bag is known to get wrong; each a
// test that ours does not.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include "tests/api/sharded_cases.h"

namespace ts = tessera;
using ts::BagStrategy;
using ts::sharded::BagInput;
using ts::testing::bags_of;
using ts::testing::exact_values;
using ts::testing::expect_bags_as_on_one_device;
using ts::testing::living_here;
using ts::testing::ShardedCase;
using ts::testing::with_mesh;

namespace sharded_faults_test {

// In each layout and strategy.
void expect_right(ShardedCase c) {
  ASSERT_TRUE(with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    for (const int64_t dim : {0, 1}) {
      for (const auto strategy :
           {BagStrategy::Cheapest, BagStrategy::Pooled, BagStrategy::Rows}) {
        c.dim = dim;
        c.options.strategy = strategy;
        expect_bags_as_on_one_device(c, mesh);
      }
    }
  }));
}

ShardedCase mean_of(const BagInput& input) {
  ShardedCase c;
  c.table = exact_values({10, 4}, at::kFloat, 1);
  c.inputs.assign(4, input);
  c.options.mode = "mean";
  return c;
}

TEST(ShardedFaults, MeanOfOneDimensionalInputWithPadding) {
  auto c = mean_of(bags_of({{1, 2, 9, 2}, {2, 3}, {5, 6, 7}}));
  c.options.padding_idx = 2;
  expect_right(c);
}

TEST(ShardedFaults, MeanOfEmptyAndAllPaddingBagsIsZero) {
  auto c = mean_of(bags_of({{}, {2, 2}, {1}, {}}));
  c.options.padding_idx = 2;
  expect_right(c);
  ASSERT_TRUE(with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    for (const auto* mode : {"sum", "mean", "max"}) {
      const auto weight = ts::ShardedTensor::from_full(
          c.table, {0, {0, 1, 2, 3}}, {.same_on_all_ranks = true});
      const std::vector<BagInput> inputs(
          living_here(mesh, 4).size(), c.inputs[0]);
      for (const auto& bags : ts::sharded::embedding_bag(
               inputs, weight, {.mode = mode, .padding_idx = 2})) {
        for (const int64_t empty : {0, 1, 3}) {
          EXPECT_TRUE(bags[empty].equal(torch::zeros({4})));
        }
      }
    }
  }));
}

TEST(ShardedFaults, NegativePaddingIndex) {
  for (const auto* mode : {"sum", "mean", "max"}) {
    auto c = mean_of(bags_of({{1, 8, 9, 8}, {8}, {5, 9, 7}}));
    c.options.mode = mode;
    c.options.padding_idx = -2;
    expect_right(c);
  }
}

TEST(ShardedFaults, MoreOffsetsThanIndices) {
  for (const auto* mode : {"sum", "mean", "max"}) {
    auto c = mean_of(bags_of({{}, {}, {3}, {}, {7}, {}, {}, {}}));
    c.options.mode = mode;
    expect_right(c);
  }
}

TEST(ShardedFaults, DifferentBatchSizes) {
  auto c = mean_of({});
  c.inputs = {
      {torch::tensor({{1, 2, 3}, {4, 5, 6}, {7, 8, 9}})},
      {torch::tensor({{0}})},
      {torch::zeros({0, 7}, at::kLong)},
      bags_of({{1}, {2, 3, 4, 5, 6}, {}, {}, {9, 0}})};
  expect_right(c);
}

// The largest piece of memory that is asked for while it is alive.
class LargestAllocation : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(
      void* /*ptr*/,
      int64_t size,
      size_t /*allocated*/,
      size_t /*reserved*/,
      c10::Device /*device*/) override {
    largest = std::max(largest, size);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t largest = 0;
};

TEST(ShardedFaults, TheShardIsNotCopied) {
  ASSERT_TRUE(with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    constexpr int64_t kRows = 4096;
    constexpr int64_t kWidth = 32;
    for (const int64_t dim : {0, 1}) {
      const auto weight = ts::ShardedTensor::from_full(
          torch::ones({kRows, kWidth}),
          {dim, {0, 1, 2, 3}},
          {.same_on_all_ranks = true});
      const std::vector<BagInput> inputs(
          living_here(mesh, 4).size(), bags_of({{0, 4095}, {1024, 2, 3000}}));
      for (const auto* mode : {"sum", "mean", "max"}) {
        for (const auto strategy : {BagStrategy::Pooled, BagStrategy::Rows}) {
          auto counter = std::make_shared<LargestAllocation>();
          {
            const c10::DebugInfoGuard guard(
                c10::DebugInfoKind::PROFILER_STATE, counter);
            ts::sharded::embedding_bag(
                inputs,
                weight,
                {.mode = mode, .padding_idx = 2, .strategy = strategy});
          }
          EXPECT_GT(counter->largest, 0);
          EXPECT_LT(counter->largest, kRows * kWidth * 4 / 4);
        }
      }
    }
  }));
}

}  // namespace sharded_faults_test
