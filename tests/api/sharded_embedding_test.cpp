// embedding on a ShardedTensor: inputs of any shape on each rank, against
// at::embedding on one device.
#include <gtest/gtest.h>

#include "tests/api/sharded_cases.h"

namespace ts = tessera;
using ts::testing::difference;
using ts::testing::exact_values;
using ts::testing::living_here;
using ts::testing::outside;
using ts::testing::random_indices;
using ts::testing::with_mesh;

namespace sharded_embedding_test {

struct RowsCase {
  at::Tensor table;
  ts::ChunkShardingSpec spec;
  std::vector<at::Tensor> inputs;
  ts::sharded::EmbeddingFuncOptions options = {};
};

void expect_rows_as_on_one_device(
    const RowsCase& c, const ts::DeviceMesh& mesh) {
  SCOPED_TRACE(c.spec.str());
  auto plain = c.table.clone().requires_grad_();
  auto weight = ts::ShardedTensor::from_full(
      c.table.clone(), c.spec, {.same_on_all_ranks = true});
  weight.requires_grad_();
  if (c.options.max_norm) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> flat;
    for (const auto& input : c.inputs) {
      flat.push_back(input.reshape({-1}).to(at::kLong));
    }
    at::embedding_renorm_(
        plain, at::cat(flat), *c.options.max_norm, c.options.norm_type);
  }
  int64_t padding = c.options.padding_idx.value_or(-1);
  if (c.options.padding_idx && padding < 0) {
    padding += c.table.size(0);
  }
  const auto here = living_here(mesh, c.inputs.size());
  std::vector<at::Tensor> inputs;
  for (const size_t r : here) {
    inputs.push_back(c.inputs[r]);
  }
  const auto rows = ts::sharded::embedding(inputs, weight, c.options);
  std::vector<at::Tensor> grads;
  for (size_t r = 0; r < c.inputs.size(); ++r) {
    const auto expected = at::embedding(plain, c.inputs[r], padding);
    const auto grad =
        exact_values(expected.sizes(), c.table.scalar_type(), 20 + r);
    expected.backward(grad);
    const auto found = std::find(here.begin(), here.end(), r);
    if (found != here.end()) {
      EXPECT_EQ(
          difference(rows[found - here.begin()].detach(), expected.detach()),
          "");
      grads.push_back(grad);
    }
  }
  torch::autograd::backward(rows, grads);
  if (c.options.update) {
    EXPECT_FALSE(weight.grad().defined());
    EXPECT_EQ(
        difference(
            ts::DTensor(weight.dtensor().detach()).full_tensor(),
            plain.detach().sub(plain.grad(), c.options.update->lr)),
        "");
    return;
  }
  EXPECT_EQ(
      difference(
          ts::DTensor(weight.dtensor().detach()).full_tensor(), plain.detach()),
      "");
  EXPECT_EQ(
      difference(weight.grad().dtensor().full_tensor(), plain.grad()), "");
}

TEST(ShardedEmbedding, UpdateInsteadOfAGradient) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    for (const int64_t dim : {0, 1}) {
      for (const auto padding :
           {std::optional<int64_t>(), std::optional<int64_t>(-2)}) {
        expect_rows_as_on_one_device(
            {exact_values({9, 5}, at::kFloat, 1),
             {dim, {0, 1, 2, 3}},
             {random_indices(9, {3, 2}, 1),
              random_indices(9, {0}, 2),
              random_indices(9, {7}, 3),
              random_indices(9, {}, 4)},
             {.padding_idx = padding, .update = ts::sharded::RowSgd{0.5}}},
            mesh);
      }
    }
  }));
}

TEST(ShardedEmbedding, InputsOfAnyShape) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    for (const auto dtype :
         {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      for (const int64_t dim : {0, 1}) {
        expect_rows_as_on_one_device(
            {exact_values({9, 5}, dtype, 1),
             {dim, {0, 1, 2, 3}},
             {random_indices(9, {3, 4}, 2),
              random_indices(9, {}, 3),
              random_indices(9, {0}, 4),
              random_indices(9, {2, 1, 3}, 5, at::kInt)}},
            mesh);
      }
    }
  }));
}

TEST(ShardedEmbedding, PaddingIsReadButHasNoGradient) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    for (const int64_t dim : {0, 1}) {
      for (const int64_t padding : {0, 4, 8, -1, -9}) {
        expect_rows_as_on_one_device(
            {exact_values({9, 5}, at::kFloat, 1),
             {dim, {1, 0, 3, 2}},
             {torch::tensor({0, 8, 4, 4}),
              torch::tensor({1, 0}),
              torch::tensor({8}),
              torch::tensor({{4, 0}, {8, 3}})},
             {.padding_idx = padding}},
            mesh);
      }
    }
  }));
}

TEST(ShardedEmbedding, MaxNorm) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    for (const int64_t dim : {0, 1}) {
      expect_rows_as_on_one_device(
          {exact_values({9, 5}, at::kFloat, 1),
           {dim, {0, 1, 2, 3}},
           {torch::tensor({0, 8, 4, 4}),
            torch::tensor({1, 0}),
            torch::tensor({8}),
            torch::tensor({{4, 0}, {8, 3}})},
           {.padding_idx = 4, .max_norm = 1.5, .norm_type = 1}},
          mesh);
    }
  }));
}

TEST(ShardedEmbedding, RandomTrials) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    ASSERT_TRUE(with_mesh({ranks}, [&](const ts::DeviceMesh& mesh) {
      if (outside(mesh)) {
        return;
      }
      const int64_t trials = ts::testing::over_processes() ? 25 : 200;
      for (int64_t trial = 0; trial < trials; ++trial) {
        ts::testing::CaseMaker make(5000 * ranks + trial);
        const int64_t rows = 1 + make.below(12);
        RowsCase c{
            exact_values({rows, 1 + make.below(9)}, at::kFloat, trial),
            {make.below(2), {0}},
            {}};
        const auto order = ts::testing::ranks_in_order(ranks);
        c.spec.placements = {order.begin(), order.end()};
        for (int64_t r = 0; r < ranks; ++r) {
          c.inputs.push_back(random_indices(
              rows, {make.below(4), make.below(5)}, 10 * trial + r));
        }
        if (make.one_in(2)) {
          c.options.padding_idx = make.below(2 * rows) - rows;
        }
        expect_rows_as_on_one_device(c, mesh);
      }
    }));
  }
}

}  // namespace sharded_embedding_test
