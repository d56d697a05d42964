// Only one rank has an index outside the table: every rank gets the error,
// none is left waiting, and the next lookup works. Run as processes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>

#include "tessera/tessera.h"
#include "testing/processes.h"

namespace ts = tessera;

namespace embedding_bad_index_test {

const ts::Placement R = ts::Replicate();
const ts::Placement S0 = ts::Shard(0);
const ts::Placement S1 = ts::Shard(1);

constexpr int64_t kRows = 9;

class OneBadIndex : public ts::testing::FourProcesses {
 protected:
  // Each rank in turn has the bad index; only it knows its indices.
  static void expect_error_everywhere(
      at::IntArrayRef shape,
      const ts::Placements& table,
      const ts::Placements& batch,
      ts::LookupStrategy strategy) {
    SCOPED_TRACE(
        ts::to_string(table) + " by " + ts::to_string(batch) + ", strategy " +
        std::to_string(static_cast<int>(strategy)));
    const auto world =
        ts::World::from_environment(1, {std::chrono::seconds(20)});
    const auto mesh = ts::init_device_mesh("cpu", shape);
    const ts::EmbeddingScope scope({.strategy = strategy});
    const auto value = torch::arange(kRows * 4.0).view({kRows, 4});
    const auto weight =
        ts::distribute_tensor(value, mesh, table, {.same_on_all_ranks = true})
            .detach()
            .requires_grad_();
    for (int64_t bad_rank = 0; bad_rank < 4; ++bad_rank) {
      for (const int64_t bad : {kRows, int64_t{-3}}) {
        auto local = torch::tensor({1, 8, 3});
        if (world.rank() == bad_rank) {
          local[1] = bad;
        }
        const auto indices = ts::DTensor::from_local(local, mesh, batch);
        std::string text = "no error";
        try {
          at::embedding(weight, indices);
        } catch (const c10::IndexError& error) {
          text = error.what_without_backtrace();
        }
        EXPECT_NE(text.find("index " + std::to_string(bad)), std::string::npos)
            << text;
        EXPECT_NE(text.find("9 rows"), std::string::npos) << text;
        EXPECT_TRUE(text.ends_with(c10::str("(rank ", bad_rank, ")"))) << text;
        expect_well(weight, value, mesh, batch);
      }
    }
  }

  // The next lookup and its gradient, by the same groups.
  static void expect_well(
      const at::Tensor& weight,
      const at::Tensor& value,
      const ts::DeviceMesh& mesh,
      const ts::Placements& batch) {
    const auto indices =
        ts::DTensor::from_local(torch::tensor({1, 8, 3}), mesh, batch);
    const auto rows = at::embedding(weight, indices);
    const auto whole = indices.full_tensor();
    EXPECT_TRUE(ts::DTensor(rows.detach())
                    .full_tensor()
                    .equal(at::embedding(value, whole)));
    weight.mutable_grad() = at::Tensor();
    rows.sum().backward();
    const auto plain = value.clone().requires_grad_();
    at::embedding(plain, whole).sum().backward();
    EXPECT_TRUE(ts::DTensor(weight.grad()).full_tensor().equal(plain.grad()));
  }
};

TEST_F(OneBadIndex, ReplicatedTable) {
  expect_error_everywhere({4}, {R}, {S0}, ts::LookupStrategy::Cheapest);
}

TEST_F(OneBadIndex, RowWiseTableByGather) {
  expect_error_everywhere({4}, {S0}, {S0}, ts::LookupStrategy::Gather);
}

TEST_F(OneBadIndex, RowWiseTableByExchange) {
  expect_error_everywhere({4}, {S0}, {S0}, ts::LookupStrategy::Exchange);
}

TEST_F(OneBadIndex, ColumnWiseTable) {
  expect_error_everywhere({4}, {S1}, {S0}, ts::LookupStrategy::Cheapest);
}

TEST_F(OneBadIndex, GridOfRowsAndColumns) {
  for (const auto strategy :
       {ts::LookupStrategy::Gather, ts::LookupStrategy::Exchange}) {
    expect_error_everywhere({2, 2}, {S0, S1}, {S0, S0}, strategy);
  }
}

TEST_F(OneBadIndex, RowsCutTwice) {
  expect_error_everywhere(
      {2, 2}, {S0, S0}, {S0, S0}, ts::LookupStrategy::Cheapest);
}

TEST_F(OneBadIndex, RowsOnOneDimensionBatchOnBoth) {
  for (const auto strategy :
       {ts::LookupStrategy::Gather, ts::LookupStrategy::Exchange}) {
    expect_error_everywhere({2, 2}, {S0, R}, {S0, S0}, strategy);
    expect_error_everywhere({2, 2}, {R, S0}, {S0, S0}, strategy);
    expect_error_everywhere({2, 2}, {R, S1}, {S0, S0}, strategy);
  }
}

// What the ranks of one mesh dimension share only they know: the other
// groups must learn of a bad index as well.
TEST_F(OneBadIndex, OfAGroupThatOthersAreNotIn) {
  const auto world = ts::World::from_environment(1, {std::chrono::seconds(20)});
  const auto mesh = ts::init_device_mesh("cpu", {2, 2});
  const auto value = torch::arange(kRows * 4.0).view({kRows, 4});
  for (const auto strategy :
       {ts::LookupStrategy::Gather, ts::LookupStrategy::Exchange}) {
    const ts::EmbeddingScope scope({.strategy = strategy});
    for (const auto& table : {ts::Placements{S0, R}, {R, S0}, {S0, S1}}) {
      SCOPED_TRACE(ts::to_string(table));
      const auto weight = ts::distribute_tensor(
          value, mesh, table, {.same_on_all_ranks = true});
      // The second row of the mesh has the bad index, both its ranks alike.
      auto local = torch::tensor({1, 8, 3});
      if (world.rank() >= 2) {
        local[2] = 99;
      }
      const auto indices = ts::DTensor::from_local(local, mesh, {S0, R});
      EXPECT_THROW(at::embedding(weight, indices), c10::IndexError);
    }
  }
}

TEST_F(OneBadIndex, WithMaxNorm) {
  const auto world = ts::World::from_environment(1, {std::chrono::seconds(20)});
  const auto mesh = ts::init_device_mesh("cpu", {4});
  const ts::EmbeddingScope scope({.max_norm = true});
  const auto value = torch::arange(kRows * 4.0).view({kRows, 4});
  for (const auto& table : {S0, S1, R}) {
    SCOPED_TRACE(table.str());
    auto weight = ts::distribute_tensor(
        value, mesh, {table}, {.same_on_all_ranks = true});
    auto local = torch::tensor({1, 8, 3});
    if (world.rank() == 2) {
      local[0] = kRows;
    }
    const auto indices = ts::DTensor::from_local(local, mesh, {S0});
    EXPECT_THROW(
        at::embedding_renorm_(weight, indices, 1.0, 2.0), c10::IndexError);
    // Nothing was scaled, on any rank.
    EXPECT_TRUE(weight.full_tensor().equal(value));
  }
}

TEST_F(OneBadIndex, OfBags) {
  const auto world = ts::World::from_environment(1, {std::chrono::seconds(20)});
  const auto value = torch::arange(kRows * 4.0).view({kRows, 4});
  const auto expect_error = [&](const ts::DeviceMesh& mesh,
                                const ts::Placements& table,
                                const ts::Placements& batch) {
    SCOPED_TRACE(ts::to_string(table) + " by " + ts::to_string(batch));
    const auto weight =
        ts::distribute_tensor(value, mesh, table, {.same_on_all_ranks = true});
    const auto bags_of = [&](int64_t bad) {
      auto local = torch::tensor({{1, 8}, {3, 3}});
      if (world.rank() >= 2) {
        local[1][0] = bad;
      }
      return torch::nn::functional::embedding_bag(
          ts::DTensor::from_local(local, mesh, batch), weight);
    };
    for (const auto strategy :
         {ts::LookupStrategy::Gather, ts::LookupStrategy::Exchange}) {
      const ts::EmbeddingScope scope({.strategy = strategy});
      std::string text = "no error";
      try {
        bags_of(kRows);
      } catch (const c10::IndexError& error) {
        text = error.what_without_backtrace();
      }
      EXPECT_NE(
          text.find("[embedding_bag] index 9 is outside the table of 9 rows"),
          std::string::npos)
          << text;
      EXPECT_TRUE(text.ends_with("(rank 2)")) << text;
      // The next one works.
      const auto well = ts::DTensor(bags_of(0)).full_tensor();
      EXPECT_TRUE(well[1].equal(value[3]));
      EXPECT_TRUE(well[3].equal(
          batch.size() == 1 ? value[3] : (value[0] + value[3]) / 2));
    }
  };
  expect_error(ts::init_device_mesh("cpu", {4}), {S0}, {S0});
  const auto grid = ts::init_device_mesh("cpu", {2, 2});
  expect_error(grid, {S0, R}, {S0, R});
  expect_error(grid, {S0, S1}, {S0, R});
}

// Ops of ATen's own, whatever they throw for it.
TEST_F(OneBadIndex, OfIndexing) {
  const auto world = ts::World::from_environment(1, {std::chrono::seconds(20)});
  const auto mesh = ts::init_device_mesh("cpu", {4});
  const auto value = torch::arange(kRows * 4.0).view({kRows, 4});
  const auto batch = [&](const at::Tensor& local) {
    return ts::DTensor::from_local(local, mesh, {S0});
  };
  using Call = std::function<at::Tensor(
      const at::Tensor& x, const at::Tensor& index, const at::Tensor& source)>;
  const std::map<std::string, Call> calls{
      {"index_select",
       [](auto& x, auto& index, auto&) { return x.index_select(0, index); }},
      {"index", [](auto& x, auto& index, auto&) { return x.index({index}); }},
      {"index_put",
       [](auto& x, auto& index, auto& source) {
         return x.index_put({index}, source, /*accumulate=*/true);
       }},
      {"index_add",
       [](auto& x, auto& index, auto& source) {
         return x.index_add(0, index, source);
       }},
      {"scatter_add", [](auto& x, auto& index, auto& source) {
         const auto rows = index.unsqueeze(1).expand_as(source);
         return x.scatter_add(0, rows, source);
       }}};
  const auto source = batch(torch::ones({2, 4}));
  const auto good = batch(torch::tensor({1, 8}));
  const auto bad = batch(
      torch::tensor({int64_t{1}, world.rank() == 2 ? kRows : int64_t{8}}));
  for (const auto& [name, call] : calls) {
    for (const auto& table : {R, S1, S0}) {
      SCOPED_TRACE(name + " on " + table.str());
      const auto x = ts::distribute_tensor(
          value, mesh, {table}, {.same_on_all_ranks = true});
      std::string text = "no error";
      try {
        call(x, bad, source);
      } catch (const c10::Error& error) {
        text = error.what_without_backtrace();
      }
      EXPECT_TRUE(
          text.find("out of range") != std::string::npos ||
          text.find("out of bounds") != std::string::npos)
          << text;
      EXPECT_TRUE(
          ts::DTensor(call(x, good, source))
              .full_tensor()
              .equal(call(value, good.full_tensor(), source.full_tensor())));
      EXPECT_TRUE(x.full_tensor().equal(value));
    }
  }
}

TEST_F(OneBadIndex, OfGather) {
  const auto world = ts::World::from_environment(1, {std::chrono::seconds(20)});
  const auto mesh = ts::init_device_mesh("cpu", {4});
  const auto value = torch::arange(kRows * 4.0).view({kRows, 4});
  for (const auto& table : {S0, S1, R}) {
    SCOPED_TRACE(table.str());
    const auto x = ts::distribute_tensor(
        value, mesh, {table}, {.same_on_all_ranks = true});
    auto local = torch::zeros({2, 4}, at::kLong);
    if (world.rank() == 3) {
      local[1][2] = kRows;
    }
    const auto index = ts::DTensor::from_local(local, mesh, {S0});
    EXPECT_THROW(x.gather(0, index), c10::IndexError);
    EXPECT_TRUE(x.full_tensor().equal(value));
  }
}

}  // namespace embedding_bad_index_test
