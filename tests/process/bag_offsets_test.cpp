// Plain offsets that differ from rank to rank, which decide what is sent: every
// rank throws, none waits for a message of another kind, and the next bags
// work. Run as processes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>

#include "tessera/tessera.h"
#include "testing/processes.h"

namespace ts = tessera;

namespace bag_offsets_test {

const ts::Placement R = ts::Replicate();
const ts::Placement S0 = ts::Shard(0);
const ts::Placement S1 = ts::Shard(1);

class OffsetsThatDiffer : public ts::testing::FourProcesses {
 protected:
  static at::Tensor bags(
      const at::Tensor& weight,
      const at::Tensor& indices,
      const std::vector<int64_t>& offsets) {
    return torch::nn::functional::embedding_bag(
        indices,
        weight,
        torch::nn::functional::EmbeddingBagFuncOptions()
            .mode(torch::kSum)
            .offsets(torch::tensor(offsets)));
  }
};

// Twelve entries on four ranks: bags that begin where the ranks' entries do,
// such as do not, and other numbers of them.
TEST_F(OffsetsThatDiffer, RaiseOnEveryRank) {
  const auto world = ts::World::from_environment(1, {std::chrono::seconds(20)});
  const std::vector<int64_t> whole{0, 1, 3, 4, 6, 8, 9, 11};
  const std::vector<std::vector<int64_t>> others{
      {0, 2, 3, 4, 6, 8, 9, 11},
      {0, 1, 3, 4, 5, 8, 9, 11},
      {0, 1, 2, 4, 5, 7, 9, 11},
      {0, 5}};
  struct Layout {
    std::vector<int64_t> mesh;
    ts::Placements table;
    ts::Placements batch;
  };
  const std::vector<Layout> layouts{
      {{4}, {R}, {S0}},
      {{4}, {S0}, {S0}},
      {{4}, {S1}, {S0}},
      {{2, 2}, {S0, R}, {R, S0}},
      {{2, 2}, {R, S0}, {R, S0}},
      {{2, 2}, {S1, S0}, {R, S0}},
      {{2, 2}, {S0, S0}, {S0, S0}}};
  const auto value = torch::arange(20.0).view({10, 2});
  const auto entries = torch::tensor({0, 9, 3, 3, 7, 1, 8, 2, 2, 5, 4, 6});
  for (const auto strategy :
       {ts::LookupStrategy::Cheapest,
        ts::LookupStrategy::Gather,
        ts::LookupStrategy::Exchange}) {
    const ts::EmbeddingScope scope({.strategy = strategy});
    for (const auto& [shape, table, batch] : layouts) {
      const auto mesh = ts::init_device_mesh("cpu", shape);
      const auto weight = ts::distribute_tensor(
          value, mesh, table, {.same_on_all_ranks = true});
      const auto indices = ts::distribute_tensor(
          entries, mesh, batch, {.same_on_all_ranks = true});
      for (const int64_t odd : {0, 3}) {
        for (const auto& other : others) {
          SCOPED_TRACE(
              ts::to_string(table) + " by " + ts::to_string(batch) +
              ", strategy " + std::to_string(static_cast<int>(strategy)));
          std::string text = "no error";
          try {
            bags(weight, indices, world.rank() == odd ? other : whole);
          } catch (const c10::ValueError& error) {
            text = error.what_without_backtrace();
          }
          EXPECT_NE(text.find("different offsets"), std::string::npos) << text;
          // In step, and right where they are the same.
          for (const auto& same : {whole, other}) {
            EXPECT_TRUE(ts::DTensor(bags(weight, indices, same))
                            .full_tensor()
                            .equal(bags(value, entries, same)));
          }
        }
      }
    }
  }
}

// The check rides on what is sent anyway.
TEST_F(OffsetsThatDiffer, CostNoMessageOfTheirOwn) {
  const auto world = ts::World::from_environment(1, {std::chrono::seconds(20)});
  const auto mesh = ts::init_device_mesh("cpu", {4});
  const std::vector<int64_t> whole{0, 1, 3, 4, 6, 8, 9, 11};
  const auto value = torch::arange(20.0).view({10, 2});
  const auto indices = ts::distribute_tensor(
      torch::tensor({0, 9, 3, 3, 7, 1, 8, 2, 2, 5, 4, 6}),
      mesh,
      {S0},
      {.same_on_all_ranks = true});
  const auto counts = [&](const ts::Placement& table, const auto& offsets) {
    const auto weight = ts::distribute_tensor(
        value, mesh, {table}, {.same_on_all_ranks = true});
    const ts::CommDebugMode comm;
    torch::nn::functional::embedding_bag(
        indices,
        weight,
        torch::nn::functional::EmbeddingBagFuncOptions().offsets(offsets));
    return comm.get_total_counts();
  };
  const auto plain = torch::tensor(whole);
  const auto distributed =
      ts::distribute_tensor(plain, mesh, {R}, {.same_on_all_ranks = true});
  EXPECT_EQ(counts(R, plain), counts(R, distributed));
  const ts::EmbeddingScope scope({.strategy = ts::LookupStrategy::Exchange});
  EXPECT_EQ(counts(S0, plain), counts(S0, distributed));
}

}  // namespace bag_offsets_test
