// A row that thousands of entries ask for used to take thousands of small steps
// where a rank updates what it pools, and one where rows are exchanged: the
// strategy changed the numbers. Its steps are added up first.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;
using ts::sharded::BagInput;
using ts::sharded::RowSgd;

namespace hot_rows_of_updates_test {

constexpr int64_t kEntries = 20000;
constexpr double kRate = 1e-5;

at::Tensor table() {
  return torch::linspace(1, 2, 16 * 8).view({16, 8}).to(at::kFloat);
}

// Of each rank: one row again and again, and all once.
at::Tensor indices() {
  return torch::cat({torch::full({kEntries}, 3), torch::arange(16)});
}

at::Tensor expected(int64_t ranks) {
  auto values = table().to(at::kDouble);
  values -= kRate * static_cast<double>(ranks);
  values[3] -= kRate * static_cast<double>(ranks * kEntries);
  return values.to(at::kFloat);
}

TEST(HotRowsOfUpdates, AreSummedFirst) {
  for (const int64_t ranks : {1, 4}) {
    ts::testing::with_mesh({ranks}, [&](const ts::DeviceMesh& mesh) {
      if (ts::testing::outside(mesh)) {
        return;
      }
      for (const int64_t dim : {0, 1}) {
        for (const auto strategy :
             {ts::BagStrategy::Rows, ts::BagStrategy::Pooled}) {
          const auto placements =
              ranks == 1 ? ts::ChunkShardingSpec(dim, {0})
                         : ts::ChunkShardingSpec(dim, {0, 1, 2, 3});
          auto weight = ts::ShardedTensor::from_full(
              table(), placements, {.same_on_all_ranks = true});
          weight.requires_grad_();
          const BagInput input{indices(), torch::arange(0, kEntries + 16, 4)};
          const std::vector<BagInput> inputs(
              mesh.local_positions().size(), input);
          at::Tensor loss = torch::zeros({});
          for (const auto& bags : ts::sharded::embedding_bag(
                   inputs,
                   weight,
                   {.mode = "sum",
                    .strategy = strategy,
                    .update = RowSgd{kRate}})) {
            loss = loss + bags.sum();
          }
          loss.backward();
          EXPECT_TRUE(torch::allclose(
              weight.dtensor().full_tensor(), expected(ranks), 0, 1e-4))
              << "dim " << dim << ", strategy " << static_cast<int>(strategy)
              << weight.dtensor().full_tensor() - expected(ranks);
        }
      }
    });
  }
}

}  // namespace hot_rows_of_updates_test
