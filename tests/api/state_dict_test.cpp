// Plain weights into a distributed module and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace state_dict_test {

using ts::testing::for_each_mesh;
using ts::testing::outside;
using ts::testing::throws_saying;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(5, 7));
  torch::nn::Embedding table =
      register_module("table", torch::nn::Embedding(11, 5));
  at::Tensor scale = register_buffer("scale", torch::rand({3}));

  at::Tensor forward(const at::Tensor& x) { return linear(table(x)); }
};
TORCH_MODULE(Net);

void shard(Net& net, const ts::DeviceMesh& mesh) {
  ts::distribute_module(
      net, mesh, [](const auto&, torch::nn::Module& module, const auto& mesh) {
        const ts::Placements rows(mesh.ndim(), ts::Shard(0));
        for (const auto& parameter : module.parameters(false)) {
          ts::distribute_(parameter, mesh, rows);
        }
      });
}

TEST(StateDict, GoesBothWays) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    torch::manual_seed(1);
    Net plain;
    Net model;
    shard(model, mesh);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    const auto weights = ts::full_state_dict(*plain);
    ts::load_state_dict(*model, weights);
    if (outside(mesh)) {
      return;
    }
    // The layout stays, and so do the tensors that an optimizer holds.
    EXPECT_TRUE(ts::is_dtensor(model->linear->weight));
    EXPECT_TRUE(
        optimizer.param_groups()[0].params()[0].is_same(model->linear->weight));
    const auto ids = torch::tensor({3, 1, 10});
    const auto out = model->forward(ts::distribute_tensor(ids, mesh));
    EXPECT_TRUE(ts::DTensor(out).full_tensor().allclose(plain->forward(ids)));
    // One step, and back.
    out.sum().backward();
    plain->forward(ids).sum().backward();
    optimizer.step();
    torch::optim::SGD(plain->parameters(), 0.1).step();
    Net fresh;
    ts::load_state_dict(*fresh, ts::full_state_dict(*model));
    // Distributed values, as they are.
    Net again;
    std::map<std::string, at::Tensor> distributed;
    for (const auto& item : model->named_parameters()) {
      distributed[item.key()] = item.value();
    }
    ts::load_state_dict(*again, distributed, /*strict=*/false);
    for (const auto& item : plain->named_parameters()) {
      EXPECT_TRUE(fresh->named_parameters()[item.key()].allclose(item.value()));
      EXPECT_TRUE(again->named_parameters()[item.key()].allclose(item.value()));
    }
    EXPECT_TRUE(fresh->scale.equal(plain->scale));
  });
}

TEST(StateDict, IsACopy) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    torch::manual_seed(1);
    Net model;
    ts::distribute_module(model, mesh);
    const auto state = ts::full_state_dict(*model);
    const auto before = state.at("linear.weight").clone();
    {
      const torch::NoGradGuard no_grad;
      model->linear->weight.zero_();
    }
    EXPECT_TRUE(state.at("linear.weight").equal(before));
    EXPECT_FALSE(state.at("linear.weight").requires_grad());
  });
}

TEST(StateDict, SaysWhatDoesNotFit) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    torch::manual_seed(1);
    Net model;
    shard(model, mesh);
    auto state = ts::full_state_dict(*model);
    const auto kept = state.at("linear.bias").clone();
    state["linear.bias"] = torch::zeros({7});
    state["linear.weight"] = torch::zeros({8, 5});
    throws_saying<c10::ValueError>("'linear.weight' has shape [7, 5]", [&] {
      ts::load_state_dict(*model, state);
    });
    // Nothing was written.
    EXPECT_TRUE(ts::DTensor(model->linear->bias).full_tensor().equal(kept));
    state.erase("linear.weight");
    state["other"] = torch::zeros({1});
    throws_saying<c10::ValueError>(
        "missing are 'linear.weight', unexpected are 'other'",
        [&] { ts::load_state_dict(*model, state); });
    ts::load_state_dict(*model, state, /*strict=*/false);
    EXPECT_TRUE(ts::DTensor(model->linear->bias)
                    .full_tensor()
                    .equal(torch::zeros({7})));
  });
}

}  // namespace state_dict_test
