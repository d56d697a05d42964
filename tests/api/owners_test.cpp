// Who holds which indices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace owners_test {

using ::testing::ElementsAre;
using ts::testing::throws_saying;
using ts::testing::with_mesh;

// What owners says is what the shards hold.
TEST(Owners, AgreeWithTheShards) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    const std::vector<ts::Placement> kinds{
        ts::Shard(0), ts::Shard(1), ts::Replicate()};
    for (const auto& kind : kinds) {
      ts::Placements placements(mesh.ndim(), ts::Shard(0));
      placements.back() = kind;
      const auto whole = torch::arange(7 * 3).view({7, 3});
      const auto x = ts::distribute_tensor(whole, mesh, placements);
      for (const int64_t position : mesh.local_positions()) {
        const int64_t rank = mesh.all_ranks()[position];
        const auto shard = x.shard(rank);
        for (int64_t dim = 0; dim < 2; ++dim) {
          const auto range = x.local_range(dim, rank);
          EXPECT_EQ(range.size, shard.size(dim));
          for (int64_t i = 0; i < whole.size(dim); ++i) {
            const auto ranks = x.owners(dim, i);
            const bool named =
                std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
            const bool held = i >= range.begin &&
                              i < range.begin + range.size && shard.numel() > 0;
            EXPECT_EQ(named, held) << "rank " << rank << ", index " << i;
          }
          if (shard.numel() > 0) {
            EXPECT_TRUE(shard.index({0, 0}).equal(whole.index(
                {x.local_range(0, rank).begin, x.local_range(1, rank).begin})));
          }
        }
      }
    }
  });
}

TEST(Owners, OfARowOfATable) {
  with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto table = ts::zeros({100'000, 2}, mesh, {ts::Shard(0)});
    EXPECT_THAT(table.owners(0, 77'777), ElementsAre(3));
    EXPECT_THAT(table.owners(0, -1), ElementsAre(3));
    EXPECT_THAT(table.owners(1, 0), ElementsAre(0, 1, 2, 3));
    EXPECT_EQ(table.local_range(0, 3), (ts::Range{75'000, 25'000}));
    EXPECT_EQ(table.local_range(-1, 3), (ts::Range{0, 2}));
    if (ts::testing::over_processes()) {
      const int64_t rank = ts::testing::test_world().rank();
      EXPECT_EQ(table.local_range(0), table.local_range(0, rank));
    } else {
      throws_saying<c10::Error>("pass the rank", [&] { table.local_range(0); });
    }
    const auto few = ts::zeros({2, 2}, mesh, {ts::Shard(0)});
    EXPECT_EQ(few.local_range(0, 3).size, 0);
    EXPECT_THAT(few.owners(1, 0), ElementsAre(0, 1));
  });
}

TEST(Owners, WhatIsOutOfRangeIsRefused) {
  with_mesh({2}, [](const ts::DeviceMesh& mesh) {
    const auto x = ts::zeros({4, 2}, mesh, {ts::Shard(0)});
    throws_saying<c10::IndexError>(
        "[owners] index 4", [&] { std::ignore = x.owners(0, 4); });
    throws_saying<c10::IndexError>(
        "[owners]", [&] { std::ignore = x.owners(2, 0); });
    throws_saying<c10::IndexError>(
        "[local_range]", [&] { x.local_range(2, 0); });
    throws_saying<c10::ValueError>(
        "rank 99 is not in", [&] { x.local_range(0, 99); });
  });
}

}  // namespace owners_test
