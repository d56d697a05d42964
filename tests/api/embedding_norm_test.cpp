// max_norm: refused by default; allowed, rows are scaled as one device does.
#include <gtest/gtest.h>

#include <limits>

#include "testing/throws.h"
#include "tests/api/embedding_cases.h"

namespace ts = tessera;
namespace F = torch::nn::functional;
using ts::testing::exact_values;
using ts::testing::for_each_mesh;
using ts::testing::layouts;
using ts::testing::outside;
using ts::testing::parameter;
using ts::testing::placed;
using ts::testing::random_indices;
using ts::testing::replicated;
using ts::testing::throws_saying;
using ts::testing::with_mesh;

namespace embedding_norm_test {

const ts::Placement R = ts::Replicate();
const ts::Placement S0 = ts::Shard(0);
const ts::Placement S1 = ts::Shard(1);

// Not exact: norms are rounded. Some rows are shorter than the norm allowed.
at::Tensor table_values(c10::ScalarType dtype = at::kFloat) {
  auto values = torch::randn({9, 6}, ts::testing::generator(1));
  values[2] *= 0.01;
  values[7] = 0;
  return values.to(dtype);
}

at::Tensor lookup(
    const at::Tensor& weight,
    const at::Tensor& indices,
    double max_norm,
    double norm_type) {
  return F::embedding(
      indices,
      weight,
      F::EmbeddingFuncOptions().max_norm(max_norm).norm_type(norm_type));
}

// Two lookups and a backward pass: rows, table and gradient must be equal.
void expect_as_on_one_device(
    const ts::DeviceMesh& mesh,
    const ts::Placements& table,
    const ts::Placements& batch,
    double norm_type,
    c10::ScalarType dtype) {
  SCOPED_TRACE(
      ts::to_string(table) + " by " + ts::to_string(batch) + ", norm " +
      std::to_string(norm_type) + ", " + c10::toString(dtype));
  const auto plain = table_values(dtype).requires_grad_();
  const auto weight = parameter(table_values(dtype), mesh, table);
  const auto grad = exact_values({4, 3, 6}, dtype, 2);
  for (const uint64_t seed : {3, 4}) {
    const auto indices = random_indices(9, {4, 3}, seed);
    const auto expected = lookup(plain, indices, 1.5, norm_type);
    const auto rows =
        lookup(weight, placed(indices, mesh, batch), 1.5, norm_type);
    const auto full = ts::DTensor(rows.detach()).full_tensor();
    if (!outside(mesh)) {
      EXPECT_EQ(ts::testing::difference(full, expected.detach()), "");
    }
    EXPECT_EQ(
        ts::testing::shard_difference(weight, plain.detach(), mesh, table), "");
    expected.backward(grad);
    rows.backward(replicated(grad, mesh));
  }
  EXPECT_EQ(
      ts::testing::shard_difference(weight.grad(), plain.grad(), mesh, table),
      "");
}

TEST(EmbeddingMaxNorm, RefusedByDefault) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    for (const auto& table : {S0, S1}) {
      const auto weight =
          parameter(table_values(), mesh, ts::Placements(mesh.ndim(), table));
      throws_saying<c10::NotImplementedError>(
          "aten.embedding_renorm_.default does not have a sharding strategy "
          "registered.",
          [&] {
            lookup(weight, replicated(random_indices(9, {4}, 2), mesh), 1, 2);
          });
      // The table is as it was.
      EXPECT_EQ(
          ts::testing::shard_difference(
              weight, table_values(), mesh, ts::Placements(mesh.ndim(), table)),
          "");
    }
  });
}

TEST(EmbeddingMaxNorm, EveryLayout) {
  const ts::EmbeddingScope scope({.max_norm = true});
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 2) {
      return;
    }
    for (const auto& table : layouts(mesh, 2)) {
      for (const auto& batch : layouts(mesh, 2)) {
        expect_as_on_one_device(mesh, table, batch, 2, at::kFloat);
      }
    }
  });
}

TEST(EmbeddingMaxNorm, NormsOfEveryType) {
  const ts::EmbeddingScope scope({.max_norm = true});
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 1) {
      return;
    }
    for (const auto& table : {S0, S1, R}) {
      for (const auto& batch : {R, S0}) {
        for (const double norm_type :
             {0.5, 1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
          for (const auto dtype : {at::kFloat, at::kDouble}) {
            expect_as_on_one_device(mesh, {table}, {batch}, norm_type, dtype);
          }
        }
      }
    }
  });
}

TEST(EmbeddingMaxNorm, BothWaysOfCutIndices) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    for (const auto strategy :
         {ts::LookupStrategy::Gather, ts::LookupStrategy::Exchange}) {
      const ts::EmbeddingScope scope({.strategy = strategy, .max_norm = true});
      expect_as_on_one_device(mesh, {S0}, {S0}, 2, at::kFloat);
    }
  }));
}

TEST(EmbeddingMaxNorm, OfModules) {
  const ts::EmbeddingScope scope({.max_norm = true});
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    torch::nn::Embedding module(
        torch::nn::EmbeddingOptions(9, 6).max_norm(0.5));
    {
      const torch::NoGradGuard no_grad;
      module->weight.copy_(table_values());
    }
    ts::distribute_(module->weight, mesh, {S0});
    const auto indices = random_indices(9, {5}, 2);
    module(replicated(indices, mesh));
    auto plain = table_values();
    at::embedding_renorm_(plain, indices, 0.5, 2);
    EXPECT_EQ(
        ts::testing::shard_difference(module->weight, plain, mesh, {S0}), "");
    const auto norms = ts::DTensor(module->weight.detach())
                           .full_tensor()
                           .norm(2, {1})
                           .index_select(0, indices);
    EXPECT_LE(norms.max().item<double>(), 0.5001);
  }));
}

TEST(EmbeddingMaxNorm, ABadIndexLeavesTheTableAsItWas) {
  const ts::EmbeddingScope scope({.max_norm = true});
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    for (const auto& table : {S0, S1}) {
      for (const auto& batch : {R, S0}) {
        const auto weight = parameter(table_values(), mesh, {table});
        throws_saying<c10::IndexError>("9", [&] {
          lookup(
              weight,
              placed(torch::tensor({0, 1, 2, 9}), mesh, {batch}),
              0.5,
              2);
        });
        EXPECT_EQ(
            ts::testing::shard_difference(
                weight, table_values(), mesh, {table}),
            "");
      }
    }
  }));
}

}  // namespace embedding_norm_test
