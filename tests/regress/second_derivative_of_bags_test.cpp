// Second derivatives of bags used to leave out per_sample_weights and the
// table. As with plain tensors the first derivative may be part of a graph;
// whoever differentiates that gets an error.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "testing/throws.h"
#include "tests/api/sharded_cases.h"

namespace ts = tessera;
using ts::testing::exact_values;
using ts::testing::parameter;
using ts::testing::throws_saying;

namespace second_derivative_of_bags_test {

constexpr const char* kRefused = "cannot be differentiated again";

at::Tensor table() { return exact_values({9, 4}, at::kDouble, 1); }
at::Tensor indices() { return torch::tensor({0, 8, 3, 3, 5, 1, 0, 7}); }
at::Tensor offsets() { return torch::tensor({0, 2, 4, 6}); }
at::Tensor factors() { return exact_values({8}, at::kDouble, 2); }

std::vector<at::Tensor> first_derivatives(
    const at::Tensor& loss, const std::vector<at::Tensor>& leaves) {
  return torch::autograd::grad(
      {loss}, leaves, {}, std::nullopt, /*create_graph=*/true);
}

at::Tensor pooled(
    const at::Tensor& weight,
    const at::Tensor& which,
    const at::Tensor& begins,
    const at::Tensor& factor) {
  return std::get<0>(
      at::embedding_bag(weight, which, begins, false, 0, false, factor));
}

TEST(SecondDerivativeOfBags, IsRefusedWhoeverNeedsIt) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto one_table = table().requires_grad_();
    const auto one_factor = factors().requires_grad_();
    const auto wanted = first_derivatives(
        pooled(one_table, indices(), offsets(), one_factor).sum(),
        {one_table, one_factor});
    for (const auto& placement :
         {ts::Replicate(), ts::Shard(0), ts::Shard(1)}) {
      for (const auto& batch : {ts::Replicate(), ts::Shard(0)}) {
        SCOPED_TRACE(placement.str() + " and " + batch.str());
        const auto on = [&](const at::Tensor& value, const ts::Placement& p) {
          return ts::testing::placed(
              value, mesh, ts::Placements(mesh.ndim(), p));
        };
        const auto weight =
            parameter(table(), mesh, ts::Placements(mesh.ndim(), placement));
        const auto factor =
            parameter(factors(), mesh, ts::Placements(mesh.ndim(), batch));
        const auto bags = pooled(
            weight,
            on(indices(), batch),
            on(offsets(), ts::Replicate()),
            factor);
        const auto first = first_derivatives(bags.sum(), {weight, factor});
        for (size_t i = 0; i < first.size(); ++i) {
          EXPECT_EQ(
              ts::testing::difference(
                  ts::DTensor(first[i].detach()).full_tensor(),
                  wanted[i].detach()),
              "");
          // The loss is linear: each follows from the other factor only.
          EXPECT_TRUE(first[i].requires_grad());
          throws_saying<c10::NotImplementedError>(
              kRefused, [&] { first[i].sum().backward(); });
        }
      }
    }
  });
}

TEST(SecondDerivativeOfBags, ThatIsZeroIsNotRefused) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    // By the table alone a sum of bags is linear.
    const auto weight =
        parameter(table(), mesh, ts::Placements(mesh.ndim(), ts::Shard(0)));
    const auto first = first_derivatives(
        pooled(
            weight,
            ts::testing::replicated(indices(), mesh),
            ts::testing::replicated(offsets(), mesh),
            {})
            .sum(),
        {weight});
    EXPECT_FALSE(first[0].requires_grad());
  });
}

TEST(SecondDerivativeOfBags, OfShardedTablesIsRefused) {
  ASSERT_TRUE(ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    for (const int64_t dim : {0, 1}) {
      SCOPED_TRACE(dim);
      auto weight = ts::ShardedTensor::from_full(
          table(), {dim, {0, 1, 2, 3}}, {.same_on_all_ranks = true});
      weight.requires_grad_();
      std::vector<ts::sharded::BagInput> inputs;
      std::vector<at::Tensor> factor;
      for (size_t i = 0; i < mesh.local_positions().size(); ++i) {
        factor.push_back(factors().requires_grad_());
        inputs.push_back(
            {.input = indices(),
             .offsets = offsets(),
             .per_sample_weights = factor.back()});
      }
      const auto bags =
          ts::sharded::embedding_bag(inputs, weight, {.mode = "sum"});
      at::Tensor loss = torch::zeros({}, torch::kDouble);
      for (const auto& mine : bags) {
        loss = loss + mine.sum();
      }
      std::vector<at::Tensor> leaves = factor;
      leaves.emplace_back(weight.dtensor());
      for (const auto& first : first_derivatives(loss, leaves)) {
        EXPECT_TRUE(first.requires_grad());
        throws_saying<c10::NotImplementedError>(
            kRefused, [&] { first.sum().backward(); });
      }
    }
  }));
}

}  // namespace second_derivative_of_bags_test
