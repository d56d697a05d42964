// What bags over ranks send: just the bytes of docs/embedding_bags.md.
#include <gtest/gtest.h>

#include <set>

#include "tests/api/sharded_cases.h"

namespace ts = tessera;
using Bytes = std::map<std::string, int64_t>;
using ts::BagStrategy;
using ts::sharded::BagInput;
using ts::sharded::EmbeddingBagFuncOptions;
using ts::testing::bags_of;
using ts::testing::exact_values;
using ts::testing::living_here;
using ts::testing::test_world;
using ts::testing::with_mesh;

namespace sharded_comm_test {

constexpr int64_t kRanks = 4;
constexpr int64_t kRows = 12;  // 3 a rank
constexpr int64_t kWidth = 6;  // of floats
constexpr int64_t kHandshake = 72 * (kRanks - 1);

int64_t owner_of(int64_t row) { return row / (kRows / kRanks); }

// What goes from one rank to another.
struct Traffic {
  int64_t bags = 0;
  int64_t entries = 0;
  int64_t rows = 0;
};

Traffic traffic(
    const std::vector<std::vector<std::vector<int64_t>>>& bags,
    int64_t from,
    int64_t to) {
  Traffic sum;
  std::set<int64_t> rows;
  for (const auto& bag : bags[from]) {
    int64_t entries = 0;
    for (const int64_t row : bag) {
      if (from != to && owner_of(row) == to) {
        ++entries;
        rows.insert(row);
      }
    }
    sum.entries += entries;
    sum.bags += entries > 0 ? 1 : 0;
  }
  sum.rows = static_cast<int64_t>(rows.size());
  return sum;
}

const std::vector<std::vector<std::vector<int64_t>>> kBags{
    {{0, 3, 4, 11}, {3, 3}, {1, 2}},
    {{0, 1, 2, 5}, {}},
    {},
    {{4, 4, 4, 4, 7}, {10, 11}, {2, 2, 9}, {8}}};

// What this rank, or rank 0, asks of the others, and they of it.
struct Counted {
  Traffic asks;
  Traffic asked;
};

Counted counted(const ts::DeviceMesh& mesh) {
  const int64_t me = mesh.simulated() ? 0 : test_world().rank();
  Counted sum;
  for (int64_t other = 0; other < kRanks; ++other) {
    const auto asks = traffic(kBags, me, other);
    const auto asked = traffic(kBags, other, me);
    sum.asks.bags += asks.bags;
    sum.asks.entries += asks.entries;
    sum.asks.rows += asks.rows;
    sum.asked.bags += asked.bags;
    sum.asked.entries += asked.entries;
    sum.asked.rows += asked.rows;
  }
  return sum;
}

// Bytes of a forward and of a backward pass.
struct Passes {
  Bytes forward;
  Bytes backward;
};

Passes run(
    const ts::DeviceMesh& mesh,
    int64_t dim,
    const EmbeddingBagFuncOptions& options,
    bool per_sample_weights = false,
    c10::ScalarType dtype = at::kFloat) {
  auto weight = ts::ShardedTensor::from_full(
      exact_values({kRows, kWidth}, dtype, 1),
      {dim, {0, 1, 2, 3}},
      {.same_on_all_ranks = true});
  weight.requires_grad_();
  std::vector<BagInput> inputs;
  for (const size_t r : living_here(mesh, kRanks)) {
    inputs.push_back(bags_of(kBags[r]));
    if (per_sample_weights) {
      inputs.back().per_sample_weights =
          torch::ones(inputs.back().input.sizes(), dtype).requires_grad_();
    }
  }
  ts::CommDebugMode comm;
  at::Tensor loss = torch::zeros({});
  for (const auto& bags : ts::sharded::embedding_bag(inputs, weight, options)) {
    loss = loss + bags.sum().to(at::kFloat);
  }
  Passes passes{comm.get_comm_bytes(), {}};
  comm.reset();
  loss.backward();
  passes.backward = comm.get_comm_bytes();
  return passes;
}

Bytes by_rows(int64_t bytes) { return {{"all_to_all_rows", bytes}}; }

TEST(ShardedComm, PooledSums) {
  ASSERT_TRUE(with_mesh({kRanks}, [](const ts::DeviceMesh& mesh) {
    const auto c = counted(mesh);
    const auto sent =
        run(mesh, 0, {.mode = "sum", .strategy = BagStrategy::Pooled});
    EXPECT_EQ(
        sent.forward,
        by_rows(
            kHandshake + 4 * (c.asks.bags + c.asks.entries) +
            c.asked.bags * kWidth * 4));
    EXPECT_EQ(sent.backward, by_rows(c.asks.bags * kWidth * 4));
  }));
}

TEST(ShardedComm, PooledSumsOfHalfAreSentInFloat) {
  ASSERT_TRUE(with_mesh({kRanks}, [](const ts::DeviceMesh& mesh) {
    const auto c = counted(mesh);
    const auto sent =
        run(mesh,
            0,
            {.mode = "sum", .strategy = BagStrategy::Pooled},
            false,
            at::kHalf);
    EXPECT_EQ(
        sent.forward,
        by_rows(
            kHandshake + 4 * (c.asks.bags + c.asks.entries) +
            c.asked.bags * kWidth * 4));
    EXPECT_EQ(sent.backward, by_rows(c.asks.bags * kWidth * 2));
    const auto mean =
        run(mesh,
            0,
            {.mode = "mean", .strategy = BagStrategy::Pooled},
            false,
            at::kHalf);
    EXPECT_EQ(mean.forward, sent.forward);
    EXPECT_EQ(mean.backward, by_rows(c.asks.bags * kWidth * 4));
  }));
}

TEST(ShardedComm, PooledWithPerSampleWeights) {
  ASSERT_TRUE(with_mesh({kRanks}, [](const ts::DeviceMesh& mesh) {
    const auto c = counted(mesh);
    const auto sent =
        run(mesh, 0, {.mode = "sum", .strategy = BagStrategy::Pooled}, true);
    EXPECT_EQ(
        sent.forward,
        by_rows(
            kHandshake + 4 * (c.asks.bags + 2 * c.asks.entries) +
            c.asked.bags * kWidth * 4));
    EXPECT_EQ(
        sent.backward, by_rows(c.asks.bags * kWidth * 4 + c.asked.entries * 4));
  }));
}

TEST(ShardedComm, PooledMaxima) {
  ASSERT_TRUE(with_mesh({kRanks}, [](const ts::DeviceMesh& mesh) {
    const auto c = counted(mesh);
    const auto sent =
        run(mesh, 0, {.mode = "max", .strategy = BagStrategy::Pooled});
    EXPECT_EQ(
        sent.forward,
        by_rows(
            kHandshake + 4 * (c.asks.bags + c.asks.entries) +
            c.asked.bags * kWidth * (4 + 1)));
    EXPECT_EQ(sent.backward, by_rows(c.asks.bags * kWidth * 4));
  }));
}

TEST(ShardedComm, Rows) {
  ASSERT_TRUE(with_mesh({kRanks}, [](const ts::DeviceMesh& mesh) {
    const auto c = counted(mesh);
    for (const auto* mode : {"sum", "mean", "max"}) {
      const auto sent =
          run(mesh, 0, {.mode = mode, .strategy = BagStrategy::Rows});
      EXPECT_EQ(
          sent.forward,
          by_rows(kHandshake + 4 * c.asks.rows + c.asked.rows * kWidth * 4));
      EXPECT_EQ(sent.backward, by_rows(c.asks.rows * kWidth * 4));
    }
    // Per_sample_weights stay where they are.
    const auto sent =
        run(mesh, 0, {.mode = "sum", .strategy = BagStrategy::Rows}, true);
    EXPECT_EQ(
        sent.forward,
        by_rows(kHandshake + 4 * c.asks.rows + c.asked.rows * kWidth * 4));
    EXPECT_EQ(sent.backward, by_rows(c.asks.rows * kWidth * 4));
  }));
}

TEST(ShardedComm, Columns) {
  ASSERT_TRUE(with_mesh({kRanks}, [](const ts::DeviceMesh& mesh) {
    const int64_t me = mesh.simulated() ? 0 : test_world().rank();
    std::vector<int64_t> bags;
    std::vector<int64_t> entries;
    for (const auto& rank : kBags) {
      bags.push_back(static_cast<int64_t>(rank.size()));
      entries.push_back(0);
      for (const auto& bag : rank) {
        entries.back() += static_cast<int64_t>(bag.size());
      }
    }
    const auto sum = [](const std::vector<int64_t>& parts) {
      return std::accumulate(parts.begin(), parts.end(), int64_t{0});
    };
    const int64_t columns = me < 3 ? 2 : 0;
    for (const auto* mode : {"sum", "mean", "max"}) {
      const auto sent = run(mesh, 1, {.mode = mode});
      EXPECT_EQ(
          sent.forward,
          (Bytes{
              {"all_to_all_rows", kHandshake},
              {"all_gather", 3 * 4 * (bags[me] + entries[me])},
              {"all_to_all", (sum(bags) - bags[me]) * columns * 4}}));
      EXPECT_EQ(
          sent.backward,
          (Bytes{{"all_to_all", bags[me] * (kWidth - columns) * 4}}));
    }
    const auto sent = run(mesh, 1, {.mode = "sum"}, true);
    EXPECT_EQ(
        sent.forward.at("all_gather"), 3 * 4 * (bags[me] + 2 * entries[me]));
    EXPECT_EQ(
        sent.backward.at("reduce_scatter"), (sum(entries) - entries[me]) * 4);
  }));
}

// The cheaper strategy of the two, by the sum over all ranks.
TEST(ShardedComm, CheapestIsTheOneWithFewerBytes) {
  ASSERT_TRUE(with_mesh({kRanks}, [](const ts::DeviceMesh& mesh) {
    const auto weight = ts::ShardedTensor::from_full(
        exact_values({kRows, kWidth}, at::kFloat, 1),
        {0, {0, 1, 2, 3}},
        {.same_on_all_ranks = true});
    const auto bytes = [&](const BagInput& input, BagStrategy strategy) {
      const std::vector<BagInput> inputs(
          living_here(mesh, kRanks).size(), input);
      ts::CommDebugMode comm;
      ts::sharded::embedding_bag(
          inputs, weight, {.mode = "sum", .strategy = strategy});
      return comm.get_total_bytes();
    };
    // One row in many bags; many rows in one bag.
    const auto repeated =
        bags_of(std::vector<std::vector<int64_t>>(20, {0, 11}));
    const auto spread = bags_of({{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}});
    EXPECT_LT(
        bytes(repeated, BagStrategy::Rows),
        bytes(repeated, BagStrategy::Pooled));
    EXPECT_EQ(
        bytes(repeated, BagStrategy::Cheapest),
        bytes(repeated, BagStrategy::Rows));
    EXPECT_LT(
        bytes(spread, BagStrategy::Pooled), bytes(spread, BagStrategy::Rows));
    EXPECT_EQ(
        bytes(spread, BagStrategy::Cheapest),
        bytes(spread, BagStrategy::Pooled));
  }));
}

TEST(ShardedComm, BagsWhoseRowsAllLiveHereSendNothing) {
  ASSERT_TRUE(with_mesh({kRanks}, [](const ts::DeviceMesh& mesh) {
    auto weight = ts::ShardedTensor::from_full(
        exact_values({kRows, kWidth}, at::kFloat, 1),
        {0, {0, 1, 2, 3}},
        {.same_on_all_ranks = true});
    weight.requires_grad_();
    for (const auto strategy :
         {BagStrategy::Cheapest, BagStrategy::Pooled, BagStrategy::Rows}) {
      for (const auto* mode : {"sum", "mean", "max"}) {
        std::vector<BagInput> inputs;
        for (const size_t r : living_here(mesh, kRanks)) {
          const auto first = static_cast<int64_t>(3 * r);
          inputs.push_back(
              bags_of({{first, first + 2}, {first + 1, first + 1, first}, {}}));
        }
        ts::CommDebugMode comm;
        at::Tensor loss = torch::zeros({});
        for (const auto& bags : ts::sharded::embedding_bag(
                 inputs, weight, {.mode = mode, .strategy = strategy})) {
          loss = loss + bags.sum();
        }
        loss.backward();
        // The requests, by which all ranks know that there is nothing to send.
        EXPECT_EQ(comm.get_comm_bytes(), by_rows(kHandshake)) << comm;
        EXPECT_EQ(comm.get_total_counts(), 1) << comm;
      }
    }
  }));
}

}  // namespace sharded_comm_test
