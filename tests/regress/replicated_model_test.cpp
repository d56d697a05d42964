// A replicated model trained on a sharded batch sends one all_reduce for each
// parameter and nothing else. The gradient of a sum used to be replicated: the
// batch was moved to meet it (an all_to_all), and the gradients of the weights
// came out sharded and had to be gathered.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace replicated_model_test {

torch::nn::Sequential mlp(int64_t hidden) {
  torch::manual_seed(5);
  return torch::nn::Sequential(
      torch::nn::Linear(6, hidden),
      torch::nn::ReLU(),
      torch::nn::Linear(hidden, hidden),
      torch::nn::ReLU(),
      torch::nn::Linear(hidden, 3));
}

using Loss = std::function<at::Tensor(const at::Tensor&)>;

const std::map<std::string, Loss>& losses() {
  static const std::map<std::string, Loss> all{
      {"sum", [](const at::Tensor& y) { return y.sum(); }},
      {"mean", [](const at::Tensor& y) { return y.mean(); }},
      {"mean of squares", [](const at::Tensor& y) { return y.pow(2).mean(); }},
      {"sum of rows",
       [](const at::Tensor& y) { return y.sum(1).tanh().sum(); }},
      {"mean of rows", [](const at::Tensor& y) { return y.mean(1).sum(); }},
      {"sum of columns", [](const at::Tensor& y) { return y.sum(0).sum(); }},
      {"nansum", [](const at::Tensor& y) { return y.nansum(); }},
      {"mse_loss",
       [](const at::Tensor& y) {
         return torch::mse_loss(y, torch::zeros_like(y));
       }},
      {"one output", [](const at::Tensor& y) { return y.select(1, 0).sum(); }},
  };
  return all;
}

void expect_one_all_reduce_a_parameter(
    const ts::DeviceMesh& mesh, int64_t rows, int64_t hidden) {
  const auto x = torch::arange(rows * 6.0).sin().view({rows, 6});
  const ts::Placements whole(mesh.ndim(), ts::Replicate());
  ts::Placements cut = whole;
  cut[0] = ts::Shard(0);
  for (const auto& [name, loss] : losses()) {
    SCOPED_TRACE(
        name + " of " + std::to_string(rows) + " rows, " +
        std::to_string(hidden) + " units");
    auto plain = mlp(hidden);
    loss(plain->forward(x)).backward();

    auto model = mlp(hidden);
    for (auto& parameter : model->parameters()) {
      ts::distribute_(parameter, mesh, whole, {.same_on_all_ranks = true});
    }
    const at::Tensor batch =
        ts::distribute_tensor(x, mesh, cut, {.same_on_all_ranks = true});
    const ts::CommDebugMode comm;
    const auto value = loss(model->forward(batch));
    EXPECT_EQ(comm.get_total_counts(), 0) << comm;
    value.backward();
    const auto parameters = model->parameters();
    const auto count = static_cast<int64_t>(parameters.size());
    const std::map<std::string, int64_t> expected{{"all_reduce", count}};
    EXPECT_EQ(
        comm.get_comm_counts(),
        mesh.size(0) > 1 ? expected : (std::map<std::string, int64_t>()))
        << comm;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const ts::DTensor grad(parameters[i].grad());
      EXPECT_EQ(grad.placements(), ts::PlacementsRef(whole));
      EXPECT_EQ(
          ts::testing::difference(
              grad.full_tensor(), plain->parameters()[i].grad(), at::kFloat),
          "");
    }
  }
}

TEST(ReplicatedModel, OneAllReduceAParameter) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    // Weights larger than the batch, a batch larger than weights, an uneven one
    // and one with fewer rows than ranks.
    expect_one_all_reduce_a_parameter(mesh, 8, 64);
    expect_one_all_reduce_a_parameter(mesh, 64, 4);
    expect_one_all_reduce_a_parameter(mesh, 7, 5);
    expect_one_all_reduce_a_parameter(mesh, 2, 5);
  });
}

// The gradient can be differentiated again.
TEST(ReplicatedModel, SecondDerivative) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto second = [](const at::Tensor& x) {
      const auto first = torch::autograd::grad(
          {x.pow(3).sum()}, {x}, {}, /*retain=*/true, /*create_graph=*/true);
      return torch::autograd::grad({first[0].sum()}, {x})[0];
    };
    const auto x = torch::arange(10.0).view({5, 2});
    for (const auto& layout : ts::testing::layouts(mesh, 2)) {
      const at::Tensor d = ts::distribute_tensor(
          x.clone().requires_grad_(),
          mesh,
          layout,
          {.same_on_all_ranks = true});
      EXPECT_TRUE(ts::DTensor(second(d)).full_tensor().equal(6 * x));
    }
  });
}

}  // namespace replicated_model_test
