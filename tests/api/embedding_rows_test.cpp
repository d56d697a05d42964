// Row-wise sharded tables: several at once, ranks without rows, rows sharded
// twice. Each
// is a case that is known to go wrong elsewhere.
#include <gtest/gtest.h>

#include "tests/api/embedding_cases.h"

namespace ts = tessera;
using ts::testing::exact_values;
using ts::testing::for_each_mesh;
using ts::testing::outside;
using ts::testing::parameter;
using ts::testing::placed;
using ts::testing::random_indices;
using ts::testing::replicated;
using ts::testing::with_mesh;

namespace embedding_rows_test {

const ts::Placement R = ts::Replicate();
const ts::Placement S0 = ts::Shard(0);

TEST(RowWiseTable, TwoLookupsOfEqualShapeAliveAtOnce) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto value = exact_values({9, 4}, at::kFloat, 1);
    const auto first_at = random_indices(9, {6}, 2);
    const auto second_at = random_indices(9, {6}, 3);
    const ts::Placements rows(mesh.ndim(), S0);
    for (const bool backwards : {false, true}) {
      const auto weight = parameter(value, mesh, rows);
      const auto first = at::embedding(weight, replicated(first_at, mesh));
      const auto second = at::embedding(weight, replicated(second_at, mesh));
      std::vector<std::pair<at::Tensor, at::Tensor>> lookups{
          {first, at::embedding(value, first_at)},
          {second, at::embedding(value, second_at)}};
      if (backwards) {
        std::swap(lookups[0], lookups[1]);
      }
      for (int times = 0; times < 2; ++times) {
        for (const auto& [lookup, expected] : lookups) {
          const auto full = ts::DTensor(lookup.detach()).full_tensor();
          if (!outside(mesh)) {
            EXPECT_TRUE(full.equal(expected));
          }
        }
      }
      (first + 2 * second).sum().backward();
      const auto plain = value.clone().requires_grad_();
      (at::embedding(plain, first_at) + 2 * at::embedding(plain, second_at))
          .sum()
          .backward();
      EXPECT_EQ(
          ts::testing::shard_difference(
              weight.grad(), plain.grad(), mesh, rows),
          "");
    }
  });
}

TEST(RowWiseTable, TwoTablesOfEqualShape) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto a = exact_values({9, 4}, at::kFloat, 1);
    const auto b = exact_values({9, 4}, at::kFloat, 2);
    const auto at_a = random_indices(9, {6}, 3);
    const auto at_b = random_indices(9, {6}, 4);
    const ts::Placements rows(mesh.ndim(), S0);
    const auto first =
        at::embedding(placed(a, mesh, rows), replicated(at_a, mesh));
    const auto second =
        at::embedding(placed(b, mesh, rows), replicated(at_b, mesh));
    EXPECT_EQ(ts::DTensor(first).spec(), ts::DTensor(second).spec());
    const auto sum = ts::DTensor(first + second).full_tensor();
    const auto full_b = ts::DTensor(second).full_tensor();
    const auto full_a = ts::DTensor(first).full_tensor();
    if (!outside(mesh)) {
      EXPECT_TRUE(full_a.equal(at::embedding(a, at_a)));
      EXPECT_TRUE(full_b.equal(at::embedding(b, at_b)));
      EXPECT_TRUE(sum.equal(at::embedding(a, at_a) + at::embedding(b, at_b)));
    }
  });
}

// Tables of different shapes give MaskPartials that are not equal, and sums of
// their rows all the same.
TEST(RowWiseTable, TwoTablesOfDifferentShapes) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.size() == 1) {
      return;
    }
    const auto a = exact_values({9, 4}, at::kFloat, 1);
    const auto b = exact_values({5, 4}, at::kFloat, 2);
    const auto at_a = random_indices(9, {6}, 3);
    const auto at_b = random_indices(5, {6}, 4);
    const ts::Placements rows(mesh.ndim(), S0);
    const auto first =
        at::embedding(placed(a, mesh, rows), replicated(at_a, mesh));
    const auto second =
        at::embedding(placed(b, mesh, rows), replicated(at_b, mesh));
    EXPECT_NE(
        ts::DTensor(first).placements()[0],
        ts::DTensor(second).placements()[0]);
    const auto sum = ts::DTensor(first + second).full_tensor();
    const auto joined = ts::DTensor(at::cat({first, second})).full_tensor();
    if (!outside(mesh)) {
      EXPECT_TRUE(sum.equal(at::embedding(a, at_a) + at::embedding(b, at_b)));
      EXPECT_TRUE(joined.equal(
          at::cat({at::embedding(a, at_a), at::embedding(b, at_b)})));
    }
  });
}

TEST(RowWiseTable, GradientHoldsItsOwnRowsAlone) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto weight =
        parameter(exact_values({10, 4}, at::kFloat, 1), mesh, {S0});
    at::embedding(weight, replicated(random_indices(10, {30}, 2), mesh))
        .sum()
        .backward();
    const ts::DTensor grad(weight.grad());
    EXPECT_EQ(grad.placements()[0], S0);
    const auto shards = grad.shards();
    for (size_t i = 0; i < shards.size(); ++i) {
      const int64_t rank = mesh.local_positions()[i];
      // 10 rows over 4 ranks: 3, 3, 3, 1.
      EXPECT_EQ(
          shards[i].sizes(), (std::vector<int64_t>{rank == 3 ? 1 : 3, 4}));
      // Its memory, too, is no more than that.
      EXPECT_EQ(
          shards[i].storage().nbytes(),
          static_cast<size_t>(shards[i].numel()) * 4);
    }
  }));
}

TEST(RowWiseTable, ARankWithoutRows) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    // 5 rows: 2, 2, 1, 0.
    ts::testing::LookupCase c{
        exact_values({5, 4}, at::kFloat, 1), random_indices(5, {3, 2}, 2)};
    c.table = {S0};
    for (const auto& batch : {R, S0}) {
      c.batch = {batch};
      ts::testing::expect_as_on_one_device(c, mesh);
    }
  }));
}

TEST(RowWiseTable, CutTwiceOnTwoDimensions) {
  ASSERT_TRUE(with_mesh({2, 2}, [](const ts::DeviceMesh& mesh) {
    for (const int64_t rows : {3, 5, 9, 10}) {
      ts::testing::LookupCase c{
          exact_values({rows, 4}, at::kFloat, 1), random_indices(rows, {7}, 2)};
      c.table = {S0, S0};
      for (const auto& batch :
           {ts::Placements{R, R}, {S0, R}, {R, S0}, {S0, S0}}) {
        c.batch = batch;
        ts::testing::expect_as_on_one_device(c, mesh);
      }
    }
  }));
}

TEST(RowWiseTable, RowsOnOneDimensionBatchOnTheOther) {
  ASSERT_TRUE(with_mesh({2, 2}, [](const ts::DeviceMesh& mesh) {
    ts::testing::LookupCase c{
        exact_values({9, 4}, at::kFloat, 1),
        random_indices(9, {7}, 2),
        {S0, R},
        {R, S0}};
    ts::testing::expect_as_on_one_device(c, mesh);
    c.table = {R, S0};
    c.batch = {S0, R};
    ts::testing::expect_as_on_one_device(c, mesh);
  }));
}

}  // namespace embedding_rows_test
