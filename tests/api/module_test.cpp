#include <tessera/debug.h>
#include <tessera/distribute.h>
#include <tessera/module.h>
#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/worlds.h"

namespace tessera {
namespace module_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::ThrowsMessage;
using Tensors = std::vector<at::Tensor>;

// A user's own module: a child that is shared, a buffer, an absent bias.
struct NetImpl : torch::nn::Module {
  torch::nn::Linear up{5, 8};
  torch::nn::Linear down{torch::nn::LinearOptions(8, 3).bias(false)};
  at::Tensor scale = register_buffer("scale", torch::full({3}, 2.0));

  NetImpl() {
    register_module("up", up);
    auto inner = register_module("inner", torch::nn::ModuleList());
    inner->push_back(down);
    inner->push_back(up);
  }
  at::Tensor forward(const at::Tensor& x) {
    return down(torch::relu(up(x))) * scale;
  }
};
TORCH_MODULE(Net);

// Takes and gives more than a tensor.
struct PairNetImpl : torch::nn::Module {
  std::tuple<at::Tensor, std::vector<at::Tensor>> forward(
      const at::Tensor& a,
      double factor,
      const std::optional<at::Tensor>& b = std::nullopt) {
    return {a * factor, {b.has_value() ? a + *b : a}};
  }
};

class Module : public ::testing::Test {
 protected:
  // In a world of processes every rank draws the same weights.
  Module() { torch::manual_seed(1); }
  const DeviceMesh& mesh() const { return mesh_; }

 private:
  World& world_ = testing::test_world();
  DeviceMesh mesh_ = init_device_mesh("cpu", {4});
};

std::string layout(const at::Tensor& tensor) {
  return to_string(DTensor(tensor).placements());
}

at::Tensor whole(const at::Tensor& tensor) {
  return DTensor(tensor).full_tensor();
}

TEST_F(Module, WhatIsLeftAloneBecomesReplicated) {
  Net net;
  const auto plain = net->up->weight.detach().clone();
  distribute_module(net, mesh());
  for (const auto& parameter : net->parameters()) {
    EXPECT_EQ(layout(parameter), "[R]");
    EXPECT_TRUE(parameter.requires_grad());
    EXPECT_TRUE(parameter.is_leaf());
  }
  // Members and registry are one.
  EXPECT_TRUE(net->scale.is_same(net->named_buffers()["scale"]));
  EXPECT_EQ(layout(net->scale), "[R]");
  EXPECT_EQ(layout(net->down->weight), "[R]");
  EXPECT_TRUE(torch::equal(whole(net->up->weight.detach()), plain));
}

TEST_F(Module, ThePartitionFunctionIsCalledOnceForEachSubmodule) {
  Net net;
  std::vector<std::string> names;
  distribute_module(
      net,
      mesh(),
      [&](const std::string& name,
          torch::nn::Module& module,
          const DeviceMesh& given) {
        EXPECT_EQ(given, mesh());
        EXPECT_EQ(name.empty(), &module == net.get());
        names.push_back(name);
      });
  // "inner.1" is "up".
  EXPECT_THAT(names, ElementsAre("", "up", "inner", "inner.0"));
}

TEST_F(Module, DistributedParametersStayAsTheyAre) {
  Net net;
  const auto partition = [](const std::string& name,
                            torch::nn::Module& module,
                            const DeviceMesh& mesh) {
    if (name == "up") {
      auto* linear = module.as<torch::nn::Linear>();
      distribute_(linear->weight, mesh, {Shard(0)});
    }
  };
  distribute_module(net, mesh(), partition);
  EXPECT_EQ(layout(net->up->weight), "[S(0)]");
  EXPECT_EQ(layout(net->up->bias), "[R]");
  const CommDebugMode comm;
  distribute_module(net, mesh());
  EXPECT_EQ(comm.get_total_counts(), 0);
  EXPECT_EQ(layout(net->up->weight), "[S(0)]");
}

// Holds a parameter that another module holds too.
struct TiedImpl : torch::nn::Module {
  explicit TiedImpl(const at::Tensor& tied)
      : weight(register_parameter("weight", tied)) {}
  at::Tensor forward(const at::Tensor& x) { return x.matmul(weight); }
  at::Tensor weight;
};
TORCH_MODULE(Tied);

TEST_F(Module, TiedWeightsAreLaidOutByWhoeverCares) {
  torch::nn::Linear last(4, 4);
  Tied first(last->weight);
  torch::nn::Sequential both(first, last);
  distribute_module(
      both, mesh(), [](auto& name, torch::nn::Module& module, auto& mesh) {
        if (name == "1") {
          distribute_(module.as<torch::nn::Linear>()->weight, mesh, {Shard(1)});
        }
      });
  EXPECT_EQ(layout(last->weight), "[S(1)]");
  EXPECT_EQ(layout(first->weight), "[S(1)]");
}

TEST_F(Module, OptimizersMadeBeforeGoOn) {
  torch::manual_seed(3);
  Net plain;
  torch::manual_seed(3);
  Net net;
  const torch::optim::AdamOptions options(0.05);
  torch::optim::Adam plain_optimizer(plain->parameters(), options);
  torch::optim::Adam optimizer(net->parameters(), options);
  const auto x = torch::randn({6, 5});
  const auto model = distribute_module(
      net, mesh(), [](auto& name, torch::nn::Module& module, auto& mesh) {
        if (name == "up") {
          auto* linear = module.as<torch::nn::Linear>();
          distribute_(linear->weight, mesh, {Shard(0)});
          distribute_(linear->bias, mesh, {Shard(0)});
        } else if (name == "inner.0") {
          distribute_(module.as<torch::nn::Linear>()->weight, mesh, {Shard(1)});
        }
      });
  const auto all_x = distribute_tensor(x, mesh());
  for (int step = 0; step < 3; ++step) {
    plain_optimizer.zero_grad();
    const auto expected = plain(x).pow(2).mean();
    expected.backward();
    plain_optimizer.step();
    optimizer.zero_grad();
    const auto loss = model(all_x).pow(2).mean();
    loss.backward();
    optimizer.step();
    EXPECT_TRUE(torch::allclose(whole(loss), expected, 1e-4, 1e-6));
  }
  EXPECT_TRUE(
      torch::allclose(whole(net->up->weight), plain->up->weight, 1e-4, 1e-6));
  EXPECT_EQ(layout(net->up->weight), "[S(0)]");
}

TEST_F(Module, ReplicatedModelsOnShardedBatchesGetReplicatedGradients) {
  torch::manual_seed(4);
  torch::nn::Linear plain(5, 3);
  torch::manual_seed(4);
  torch::nn::Linear linear(5, 3);
  const auto x = torch::randn({8, 5});
  plain(x).pow(2).sum().backward();
  const auto model = distribute_module(linear, mesh());
  const auto batch = distribute_tensor(x, mesh(), {Shard(0)});
  const auto loss = model(batch).pow(2).sum();
  const CommDebugMode comm;
  loss.backward();
  // One for the weight, one for the bias.
  EXPECT_THAT(comm.get_comm_counts(), ElementsAre(Pair("all_reduce", 2)));
  EXPECT_EQ(layout(linear->weight.grad()), "[R]");
  EXPECT_EQ(layout(linear->bias.grad()), "[R]");
  EXPECT_TRUE(torch::allclose(
      whole(linear->weight.grad()), plain->weight.grad(), 1e-4, 1e-5));
  EXPECT_TRUE(torch::allclose(
      whole(linear->bias.grad()), plain->bias.grad(), 1e-4, 1e-5));
}

TEST_F(Module, InputAndOutputFunctionsWrapTheForward) {
  torch::manual_seed(5);
  Net net;
  const auto x = torch::randn({8, 5});
  const auto expected = net(x).detach().clone();
  const auto model = distribute_module(
      net,
      mesh(),
      nullptr,
      [&](torch::nn::Module& module, Tensors inputs, const DeviceMesh& mesh) {
        EXPECT_EQ(&module, net.get());
        return distribute_tensor(inputs.at(0), mesh, {Shard(0)});
      },
      [](torch::nn::Module&, Tensors outputs, const DeviceMesh&) {
        EXPECT_EQ(layout(outputs.at(0)), "[S(0)]");
        return Tensors{whole(outputs[0])};
      });
  const auto y = model(x);
  EXPECT_FALSE(is_dtensor(y));
  EXPECT_TRUE(torch::allclose(y, expected, 1e-4, 1e-6));
  EXPECT_EQ(model->up.get(), net->up.get());
  EXPECT_EQ(model.ptr(), net.ptr());
}

TEST_F(Module, FunctionsSeeEveryTensorAndNothingElse) {
  size_t inputs = 0;
  size_t outputs = 0;
  const auto model = distribute_module(
      std::make_shared<PairNetImpl>(),
      mesh(),
      {},
      [&](auto&, Tensors tensors, const DeviceMesh& mesh) {
        inputs = tensors.size();
        for (auto& tensor : tensors) {
          tensor = distribute_tensor(tensor, mesh, {Shard(0)});
        }
        return tensors;
      },
      [&](auto&, Tensors tensors, auto&) {
        outputs = tensors.size();
        for (auto& tensor : tensors) tensor = whole(tensor);
        return tensors;
      });
  const auto a = torch::ones({4});
  const auto [product, list] = model(a, 3.0, std::optional(torch::ones({4})));
  EXPECT_EQ(inputs, 2u);
  EXPECT_EQ(outputs, 2u);
  EXPECT_TRUE(torch::equal(product, torch::full({4}, 3.0)));
  EXPECT_TRUE(torch::equal(list.at(0), torch::full({4}, 2.0)));
  model(a, 3.0);
  EXPECT_EQ(inputs, 1u);
}

TEST_F(Module, FunctionsMustReturnATensorForEach) {
  const auto model = distribute_module(
      torch::nn::Linear(2, 2), mesh(), {}, [](auto&, Tensors, auto&) {
        return Tensors{};
      });
  EXPECT_THAT(
      [&] { model(torch::ones({1, 2})); },
      ThrowsMessage<c10::ValueError>(HasSubstr(
          "[distribute_module] input_fn of torch::nn::LinearImpl was given 1 "
          "tensors and returned 0")));
}

TEST_F(Module, ModulesHeldByValue) {
  NetImpl net;
  const auto model = distribute_module(net, mesh());
  EXPECT_EQ(layout(net.up->weight), "[R]");
  const auto x = distribute_tensor(torch::ones({2, 5}), mesh());
  EXPECT_TRUE(torch::equal(whole(model(x)), whole(net.forward(x))));
}

TEST_F(Module, NullIsRefused) {
  EXPECT_THROW(
      distribute_module(std::shared_ptr<NetImpl>(), mesh()), c10::ValueError);
}

// Keeps what is warned of while it lives.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    texts.push_back(warning.msg());
  }
  std::vector<std::string> texts;
};

TEST_F(Module, TheOlderFormsWorkAndWarn) {
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  const auto model = distribute_module(
      torch::nn::Linear(2, 2),
      mesh(),
      {},
      [](Tensors inputs, const DeviceMesh& mesh) {
        return distribute_tensor(inputs.at(0), mesh);
      },
      [](Tensors outputs, const DeviceMesh&) { return whole(outputs.at(0)); });
  ASSERT_EQ(warnings.texts.size(), 2u);
  EXPECT_THAT(warnings.texts[0], HasSubstr("Deprecating an input_fn"));
  EXPECT_THAT(warnings.texts[1], HasSubstr("Deprecating an output_fn"));
  EXPECT_FALSE(is_dtensor(model(torch::ones({1, 2}))));
  EXPECT_FALSE(is_dtensor(model(torch::ones({1, 2}))));
  EXPECT_EQ(warnings.texts.size(), 2u);
}

}  // namespace module_test
}  // namespace tessera
