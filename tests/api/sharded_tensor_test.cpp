// ShardedTensor and ChunkShardingSpec: made in each way, read, turned into a
// distributed tensor and back without a copy.
#include <gtest/gtest.h>

#include "testing/throws.h"
#include "tests/api/sharded_cases.h"

namespace ts = tessera;
using ts::testing::exact_values;
using ts::testing::living_here;
using ts::testing::outside;
using ts::testing::over_processes;
using ts::testing::test_world;
using ts::testing::throws_saying;
using ts::testing::with_mesh;

namespace sharded_tensor_test {

const ts::DistributeOptions kSame{.same_on_all_ranks = true};

TEST(ChunkShardingSpec, PlacementsAreTextsOrRanks) {
  const ts::ChunkShardingSpec texts(0, {"rank:2/cpu", "rank:0/cpu"});
  const ts::ChunkShardingSpec ranks(0, {2, 0});
  EXPECT_EQ(texts, ranks);
  EXPECT_EQ(
      texts.str(),
      "ChunkShardingSpec(dim=0, placements=[rank:2/cpu, rank:0/cpu])");
  EXPECT_EQ(ts::ShardPlacement("rank:12/cuda:3").device_type, "cuda");
  EXPECT_EQ(ts::ShardPlacement("rank:12/cuda:3").rank, 12);
  EXPECT_EQ(ts::ShardPlacement("rank:1").str(), "rank:1/cpu");
}

TEST(ChunkShardingSpec, TextsThatAreNone) {
  for (const auto* text :
       {"", "rank", "rank:", "rank:x/cpu", "2/cpu", "rank:-1/cpu", "rank:1/"}) {
    throws_saying<c10::ValueError>(
        "a text like rank:2/cpu", [&] { ts::ShardPlacement placement(text); });
  }
  throws_saying<c10::ValueError>(
      "at least one placement", [] { ts::ChunkShardingSpec spec(0, {}); });
  throws_saying<c10::ValueError>("one kind of device", [] {
    ts::ChunkShardingSpec spec(0, {"rank:0/cpu", "rank:1/cuda:0"});
  });
}

TEST(ShardedTensor, FromFullHasAChunkARank) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = exact_values({10, 6}, at::kFloat, 1);
    for (const int64_t dim : {0, 1, -1}) {
      const std::vector<int64_t> order{2, 0, 3, 1};
      const ts::ChunkShardingSpec spec(dim, {2, 0, 3, 1});
      const auto sharded = ts::ShardedTensor::from_full(value, spec, kSame);
      EXPECT_EQ(sharded.size(), value.sizes());
      EXPECT_EQ(sharded.size(-1), 6);
      ASSERT_NE(sharded.sharding_spec(), nullptr);
      EXPECT_EQ(*sharded.sharding_spec(), spec);
      const auto here = living_here(mesh, 4);
      const auto shards = sharded.local_shards();
      ASSERT_EQ(shards.size(), here.size());
      const auto chunks = value.chunk(4, dim);
      for (size_t i = 0; i < here.size(); ++i) {
        const auto rank = static_cast<int64_t>(here[i]);
        EXPECT_EQ(shards[i].rank, rank);
        const auto place = static_cast<size_t>(
            std::find(order.begin(), order.end(), rank) - order.begin());
        // torch.chunk leaves out chunks that would be empty.
        if (place < chunks.size()) {
          EXPECT_TRUE(shards[i].tensor.equal(chunks[place]));
        } else {
          EXPECT_EQ(shards[i].tensor.numel(), 0);
        }
      }
    }
  }));
}

TEST(ShardedTensor, FromFullTakesTheLowestRanksValue) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const int64_t me = mesh.simulated() ? 0 : test_world().rank();
    const auto value = exact_values({10, 6}, at::kFloat, 1);
    for (const auto& spec :
         {ts::ChunkShardingSpec(0, {0, 1, 2, 3}),
          ts::ChunkShardingSpec(1, {3, 1, 2, 0}),
          ts::ChunkShardingSpec(0, {1, 0, 3, 2})}) {
      const auto sharded = ts::ShardedTensor::from_full(value + me, spec);
      EXPECT_TRUE(sharded.dtensor().full_tensor().equal(value)) << spec.str();
    }
  }));
}

TEST(ShardedTensor, KeepsRequiresGradAsALeaf) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh&) {
    const auto value = exact_values({10, 6}, at::kFloat, 1).requires_grad_();
    for (const auto& spec :
         {ts::ChunkShardingSpec(0, {0, 1, 2, 3}),
          ts::ChunkShardingSpec(0, {3, 1, 2, 0})}) {
      const auto sharded = ts::ShardedTensor::from_full(value, spec);
      EXPECT_TRUE(sharded.dtensor().requires_grad());
      EXPECT_TRUE(sharded.dtensor().is_leaf());
      EXPECT_FALSE(sharded.grad().defined());
    }
  }));
}

TEST(ShardedTensor, ToAndFromADistributedTensorWithoutACopy) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = exact_values({10, 6}, at::kFloat, 1);
    const auto table =
        ts::distribute_tensor(value, mesh, {ts::Shard(0)}, kSame);
    ts::CommDebugMode comm;
    const ts::ShardedTensor sharded(table);
    EXPECT_TRUE(sharded.dtensor().is_same(table));
    ASSERT_NE(sharded.sharding_spec(), nullptr);
    EXPECT_EQ(*sharded.sharding_spec(), ts::ChunkShardingSpec(0, {0, 1, 2, 3}));
    sharded.local_shards()[0].tensor.fill_(7);
    EXPECT_EQ(comm.get_total_counts(), 0) << comm;
    EXPECT_TRUE(
        table.shards()[0].equal(torch::full_like(table.shards()[0], 7)));
    EXPECT_EQ(
        table.shards()[0].data_ptr(),
        sharded.local_shards()[0].tensor.data_ptr());
  }));
}

TEST(ShardedTensor, FromLocalShardsWithoutACopy) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = exact_values({10, 6}, at::kFloat, 1);
    const ts::ChunkShardingSpec spec(0, {1, 0, 3, 2});
    // By rank: the chunks of ranks 0, 1, 2, 3.
    const auto chunks = value.chunk(4, 0);
    const std::vector<at::Tensor> by_rank{
        chunks[1].clone(),
        chunks[0].clone(),
        chunks[3].clone(),
        chunks[2].clone()};
    std::vector<at::Tensor> mine;
    for (const size_t r : living_here(mesh, 4)) {
      mine.push_back(by_rank[r]);
    }
    const auto sharded =
        ts::ShardedTensor::from_local_shards(mine, {10, 6}, spec);
    EXPECT_EQ(*sharded.sharding_spec(), spec);
    EXPECT_TRUE(sharded.dtensor().full_tensor().equal(value));
    const auto shards = sharded.local_shards();
    for (size_t i = 0; i < mine.size(); ++i) {
      EXPECT_EQ(shards[i].tensor.data_ptr(), mine[i].data_ptr());
    }
    throws_saying<c10::ValueError>(
        "[ShardedTensor::from_local_shards] expected one tensor for each",
        [&] { ts::ShardedTensor::from_local_shards({}, {10, 6}, spec); });
    throws_saying<c10::ValueError>("names a rank twice", [&] {
      ts::ShardedTensor::from_local_shards(mine, {10, 6}, {0, {0, 0, 1, 2}});
    });
  }));
}

TEST(ShardedTensor, LocalTensorIsTheOnlyShard) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = exact_values({10, 6}, at::kFloat, 1);
    const auto sharded =
        ts::ShardedTensor::from_full(value, {0, {0, 1, 2, 3}}, kSame);
    if (mesh.simulated()) {
      throws_saying<c10::ValueError>(
          "4 shards live in this process", [&] { sharded.local_tensor(); });
    } else {
      EXPECT_TRUE(
          sharded.local_tensor().equal(value.chunk(4, 0)[test_world().rank()]));
    }
  }));
}

TEST(ShardedTensor, SeveralChunksOnARank) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = exact_values({10, 6}, at::kFloat, 1);
    const ts::ChunkShardingSpec spec(0, {0, 1, 0, 1});
    const auto sharded = ts::ShardedTensor::from_full(value, spec);
    EXPECT_EQ(sharded.size(), value.sizes());
    size_t expected = 0;
    for (const size_t r : living_here(mesh, 4)) {
      expected += r < 2 ? 2 : 0;
    }
    const auto shards = sharded.local_shards();
    ASSERT_EQ(shards.size(), expected);
    for (const auto& shard : shards) {
      EXPECT_TRUE(shard.tensor.equal(
          value.narrow(0, shard.offsets[0], shard.tensor.size(0))));
    }
    throws_saying<c10::ValueError>(
        "gives a rank several chunks", [&] { sharded.dtensor(); });
  }));
}

TEST(ShardedTensor, WhatIsRefused) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh&) {
    const auto value = torch::ones({10, 6});
    throws_saying<c10::TypeError>("expected a distributed tensor", [&] {
      ts::ShardedTensor sharded(value);
    });
    throws_saying<c10::ValueError>("is out of range for a tensor of 2", [&] {
      ts::ShardedTensor::from_full(value, {2, {0, 1, 2, 3}}, kSame);
    });
    throws_saying<c10::ValueError>("rank", [&] {
      ts::ShardedTensor::from_full(value, {0, {0, 1, 2, 99}}, kSame);
    });
    EXPECT_FALSE(ts::ShardedTensor().defined());
  }));
}

TEST(ShardedTensor, OtherLayoutsHaveNoSpecOfChunks) {
  ASSERT_TRUE(with_mesh({2, 2}, [](const ts::DeviceMesh& mesh) {
    const auto value = torch::ones({10, 6});
    const ts::ShardedTensor grid(ts::distribute_tensor(
        value, mesh, {ts::Shard(0), ts::Shard(1)}, kSame));
    EXPECT_EQ(grid.sharding_spec(), nullptr);
    std::ostringstream text;
    text << grid;
    EXPECT_NE(text.str().find("S(0)"), std::string::npos) << text.str();
  }));
}

TEST(ShardedTensor, AnOptimizerStepsItsDistributedTensor) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = exact_values({10, 6}, at::kFloat, 1);
    auto weight = ts::ShardedTensor::from_full(value, {0, {3, 0, 1, 2}}, kSame);
    weight.requires_grad_();
    torch::optim::SGD optimizer({at::Tensor(weight.dtensor())}, 0.5);
    const auto here = living_here(mesh, 4);
    const std::vector<at::Tensor> inputs(here.size(), torch::tensor({1, 9}));
    at::Tensor loss = torch::zeros({});
    for (const auto& rows : ts::sharded::embedding(inputs, weight)) {
      loss = loss + rows.sum();
    }
    loss.backward();
    optimizer.step();
    auto expected = value.clone();
    expected[1] -= 2;  // 4 ranks, each 0.5
    expected[9] -= 2;
    EXPECT_TRUE(
        ts::DTensor(weight.dtensor().detach()).full_tensor().equal(expected));
  }));
}

}  // namespace sharded_tensor_test
