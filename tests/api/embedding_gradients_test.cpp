// Gradients of lookups: however they come, of views, of themselves; and none.
#include <gtest/gtest.h>

#include "tests/api/embedding_cases.h"

namespace ts = tessera;
using ts::testing::exact_values;
using ts::testing::for_each_mesh;
using ts::testing::layouts;
using ts::testing::outside;
using ts::testing::parameter;
using ts::testing::placed;
using ts::testing::random_indices;
using ts::testing::replicated;

namespace embedding_gradients_test {

const ts::Placement R = ts::Replicate();
const ts::Placement S0 = ts::Shard(0);
const ts::Placement S1 = ts::Shard(1);

// Gradients that come in any layout, pending sums included.
TEST(EmbeddingGradients, GradientsThatLieAnyhow) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 2) {
      return;
    }
    const auto value = exact_values({9, 4}, at::kFloat, 1);
    const auto indices = random_indices(9, {5, 2}, 2);
    const auto grad = exact_values({5, 2, 4}, at::kFloat, 3);
    const auto plain = value.clone().requires_grad_();
    at::embedding(plain, indices).backward(grad);
    for (const auto& table : {S0, S1, R}) {
      for (const auto& batch : {R, S0}) {
        for (const auto& from : layouts(mesh, 3, ts::ReduceOp::Sum)) {
          SCOPED_TRACE(ts::to_string(from));
          const ts::Placements on(mesh.ndim(), table);
          const auto weight = parameter(value, mesh, on);
          at::embedding(
              weight, placed(indices, mesh, ts::Placements(mesh.ndim(), batch)))
              .backward(ts::testing::laid_out(grad, mesh, from, 1));
          EXPECT_EQ(
              ts::testing::shard_difference(
                  weight.grad(), plain.grad(), mesh, on),
              "");
        }
      }
    }
  });
}

// The gradient of the gradient: d/dg of <v, embedding_backward(g)>.
TEST(EmbeddingGradients, TwiceDifferentiable) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 2) {
      return;
    }
    const auto value = exact_values({9, 4}, at::kDouble, 1);
    const auto indices = random_indices(9, {5, 2}, 2);
    const auto grad_value = exact_values({5, 2, 4}, at::kDouble, 3);
    const auto along = exact_values({9, 4}, at::kDouble, 4);
    const auto second = [&](const at::Tensor& weight,
                            const at::Tensor& at,
                            const at::Tensor& grad,
                            const at::Tensor& direction) {
      const auto rows = at::embedding(weight, at, /*padding_idx=*/3);
      const auto first = torch::autograd::grad(
          {rows}, {weight}, {grad}, std::nullopt, /*create_graph=*/true)[0];
      return torch::autograd::grad({(first * direction).sum()}, {grad})[0];
    };
    const auto expected = second(
        value.clone().requires_grad_(),
        indices,
        grad_value.clone().requires_grad_(),
        along);
    const ts::EmbeddingScope scope({.strategy = ts::LookupStrategy::Gather});
    for (const auto& table : {S0, S1, R}) {
      for (const auto& batch : {R, S0}) {
        SCOPED_TRACE(table.str() + " and " + batch.str());
        const ts::Placements whole(mesh.ndim(), R);
        const auto actual = second(
            parameter(value, mesh, ts::Placements(mesh.ndim(), table)),
            placed(indices, mesh, ts::Placements(mesh.ndim(), batch)),
            parameter(grad_value, mesh, whole),
            replicated(along, mesh));
        const auto full = ts::DTensor(actual.detach()).full_tensor();
        if (!outside(mesh)) {
          EXPECT_EQ(ts::testing::difference(full, expected), "");
        }
      }
    }
  });
}

// Tables and indices that are views, with strides of their own.
TEST(EmbeddingGradients, OfTransposedTablesAndIndices) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 2) {
      return;
    }
    const auto value = exact_values({4, 9}, at::kFloat, 1);
    const auto indices = random_indices(9, {3, 5}, 2);
    const auto plain = value.clone().requires_grad_();
    const auto expected = at::embedding(plain.t(), indices.t());
    expected.sum().backward();
    for (const auto& table : layouts(mesh, 2)) {
      for (const auto& batch : layouts(mesh, 2)) {
        SCOPED_TRACE(ts::to_string(table) + " by " + ts::to_string(batch));
        const auto weight = parameter(value, mesh, table);
        const auto rows =
            at::embedding(weight.t(), placed(indices, mesh, batch).t());
        const auto full = ts::DTensor(rows.detach()).full_tensor();
        if (!outside(mesh)) {
          EXPECT_TRUE(full.equal(expected.detach()));
        }
        rows.sum().backward();
        EXPECT_EQ(
            ts::testing::shard_difference(
                weight.grad(), plain.grad(), mesh, table),
            "");
      }
    }
  });
}

TEST(EmbeddingGradients, AreNotRecordedUnlessAsked) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 2) {
      return;
    }
    const torch::NoGradGuard no_grad;
    const auto weight = exact_values({9, 4}, at::kFloat, 1);
    const auto indices = random_indices(9, {4, 2}, 2);
    for (const auto& table : layouts(mesh, 2)) {
      for (const auto& batch : layouts(mesh, 2)) {
        const auto rows = at::embedding(
            placed(weight, mesh, table), placed(indices, mesh, batch));
        EXPECT_FALSE(rows.requires_grad());
        const auto full = ts::DTensor(rows).full_tensor();
        if (!outside(mesh)) {
          EXPECT_TRUE(full.equal(at::embedding(weight, indices)));
        }
      }
    }
  });
}

}  // namespace embedding_gradients_test
