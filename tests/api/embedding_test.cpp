// Lookups in sharded tables, forward and backward, against one device: inputs
// of every shape and dtype, every layout of table and indices.
#include <gtest/gtest.h>

#include "tests/api/embedding_cases.h"

namespace ts = tessera;
using ts::testing::exact_values;
using ts::testing::expect_as_on_one_device;
using ts::testing::for_each_mesh;
using ts::testing::layouts;
using ts::testing::LookupCase;
using ts::testing::outside;
using ts::testing::parameter;
using ts::testing::random_indices;
using ts::testing::replicated;
using ts::testing::with_mesh;

namespace embedding_test {

const std::vector<std::vector<int64_t>> kInputs{
    {}, {7}, {5, 4}, {2, 3, 4}, {2, 1, 3, 2}, {1, 2, 3, 1, 2}};

const std::vector<ts::LookupStrategy> kStrategies{
    ts::LookupStrategy::Cheapest,
    ts::LookupStrategy::Gather,
    ts::LookupStrategy::Exchange};

const ts::Placement R = ts::Replicate();
const ts::Placement S0 = ts::Shard(0);
const ts::Placement S1 = ts::Shard(1);

LookupCase lookup_of(
    int64_t rows,
    int64_t columns,
    at::IntArrayRef input,
    const ts::Placements& table,
    const ts::Placements& batch) {
  LookupCase c{
      exact_values({rows, columns}, at::kFloat, 1),
      random_indices(rows, input, 2)};
  c.table = table;
  c.batch = batch;
  return c;
}

TEST(Embedding, EveryLayoutOfTableAndIndices) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 2) {
      return;
    }
    for (const auto& table : layouts(mesh, 2)) {
      for (const auto& batch : layouts(mesh, 2)) {
        for (const auto strategy : kStrategies) {
          auto c = lookup_of(9, 6, {5, 4}, table, batch);
          c.strategy = strategy;
          c.padding_idx = 4;
          expect_as_on_one_device(c, mesh);
        }
      }
    }
  });
}

TEST(Embedding, InputsOfNoneToFiveDimensions) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 1) {
      return;
    }
    for (const auto& input : kInputs) {
      for (const auto& table : {S0, S1, R}) {
        expect_as_on_one_device(lookup_of(10, 8, input, {table}, {R}), mesh);
        for (size_t d = 0; d < input.size(); ++d) {
          for (const auto strategy : kStrategies) {
            auto c = lookup_of(
                10, 8, input, {table}, {ts::Shard(static_cast<int64_t>(d))});
            c.strategy = strategy;
            expect_as_on_one_device(c, mesh);
          }
        }
      }
    }
  });
}

TEST(Embedding, UnevenRowsAndColumnsAndFewerThanRanks) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 1) {
      return;
    }
    for (const int64_t rows : {1, 2, 3, 5, 6, 7, 13}) {
      for (const int64_t columns : {1, 2, 3, 5, 9}) {
        for (const auto& table : {S0, S1}) {
          for (const auto& batch : {R, S0, S1}) {
            for (const auto strategy : kStrategies) {
              auto c = lookup_of(rows, columns, {3, 2}, {table}, {batch});
              c.strategy = strategy;
              expect_as_on_one_device(c, mesh);
            }
          }
        }
      }
    }
  });
}

TEST(Embedding, DtypesOfTableAndIndices) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 1) {
      return;
    }
    for (const auto dtype :
         {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
      for (const auto index_dtype : {at::kInt, at::kLong}) {
        for (const auto& table : {S0, S1, R}) {
          for (const auto& batch : {R, S0}) {
            for (const auto strategy : kStrategies) {
              LookupCase c{
                  exact_values({9, 5}, dtype, 3),
                  random_indices(9, {6, 3}, 4, index_dtype)};
              c.table = {table};
              c.batch = {batch};
              c.strategy = strategy;
              c.padding_idx = 2;
              expect_as_on_one_device(c, mesh);
            }
          }
        }
      }
    }
  });
}

TEST(Embedding, EmptyInput) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 1) {
      return;
    }
    for (const auto& input :
         std::vector<std::vector<int64_t>>{{0}, {0, 3}, {2, 0}}) {
      for (const auto& table : {S0, S1, R}) {
        for (const auto& batch : {R, S0}) {
          for (const auto strategy : kStrategies) {
            auto c = lookup_of(9, 5, input, {table}, {batch});
            c.strategy = strategy;
            expect_as_on_one_device(c, mesh);
          }
        }
      }
    }
  });
}

TEST(Embedding, ThePaddingRowGetsNoGradient) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 2) {
      return;
    }
    for (const auto& table : layouts(mesh, 2)) {
      // Every row in turn, so that each rank holds the padding row once.
      for (int64_t padding = 0; padding < 6; ++padding) {
        LookupCase c{
            exact_values({6, 4}, at::kFloat, 5),
            torch::arange(6).repeat({2, 1}),
            table,
            ts::Placements(mesh.ndim(), R),
            padding};
        expect_as_on_one_device(c, mesh);
      }
    }
  });
}

TEST(Embedding, ModulesCountPaddingFromTheEnd) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    for (const auto& placement : {S0, S1}) {
      torch::manual_seed(0);
      torch::nn::Embedding module(
          torch::nn::EmbeddingOptions(7, 4).padding_idx(-2));
      const auto plain = module->weight.detach().clone().requires_grad_();
      ts::distribute_(
          module->weight, mesh, ts::Placements(mesh.ndim(), placement));
      const auto indices = random_indices(7, {4, 5}, 6);
      const auto rows = module(replicated(indices, mesh));
      const auto expected = at::embedding(plain, indices, 5);
      rows.sum().backward();
      expected.sum().backward();
      EXPECT_EQ(
          ts::testing::shard_difference(
              module->weight.grad(),
              plain.grad(),
              mesh,
              ts::Placements(mesh.ndim(), placement)),
          "");
      const auto full = ts::DTensor(rows.detach()).full_tensor();
      if (!outside(mesh)) {
        EXPECT_TRUE(full.equal(expected.detach()));
        EXPECT_TRUE(plain.grad()[5].eq(0).all().item<bool>());
      }
    }
  });
}

TEST(Embedding, FunctionalAndModuleAndOpAgree) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto weight =
        parameter(exact_values({9, 4}, at::kFloat, 1), mesh, {S0});
    const auto indices = replicated(random_indices(9, {5}, 2), mesh);
    const auto op = at::embedding(weight, indices);
    const auto functional = torch::nn::functional::embedding(indices, weight);
    const auto module = torch::nn::Embedding(
        torch::nn::EmbeddingOptions(9, 4)._weight(weight))(indices);
    for (const auto& rows : {functional, module}) {
      EXPECT_EQ(ts::DTensor(rows).spec(), ts::DTensor(op).spec());
      EXPECT_TRUE(
          ts::DTensor(rows).full_tensor().equal(ts::DTensor(op).full_tensor()));
    }
  }));
}

// Each row of ranks has a table of its own.
TEST(Embedding, OnASliceOfAMesh) {
  ASSERT_TRUE(with_mesh({2, 2}, [](const ts::DeviceMesh&) {
    const auto whole = ts::init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
    for (const char* name : {"dp", "tp"}) {
      const auto slice = whole[name];
      for (const auto& table : {S0, S1, R}) {
        for (const auto& batch : {R, S0, S1}) {
          for (const auto strategy : kStrategies) {
            auto c = lookup_of(9, 5, {5, 3}, {table}, {batch});
            c.strategy = strategy;
            c.sparse = table.is_shard(0);
            expect_as_on_one_device(c, slice);
          }
        }
      }
    }
  }));
}

}  // namespace embedding_test
