// module->clone() of a distributed module gives a distributed module. It used
// to raise, since the clone's parameters are made plain and then given the data
// of distributed ones.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace module_clone_test {

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 8));
    norm = register_module(
        "norm", torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(8)));
    table = register_module("table", torch::nn::Embedding(5, 6));
    steps = register_buffer("steps", torch::zeros({1}));
  }
  at::Tensor forward(const at::Tensor& ids) { return first(table(ids)).relu(); }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Embedding table{nullptr};
  at::Tensor steps;
  NetImpl() { reset(); }
};

TEST(ModuleClone, OfADistributedModule) {
  EXPECT_TRUE(ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    NetImpl net;
    ts::distribute_(net.table->weight, mesh, {ts::Shard(0)});
    ts::distribute_(net.first->weight, mesh, {ts::Shard(1)});
    for (auto& parameter : net.parameters()) {
      if (!ts::is_dtensor(parameter)) {
        ts::distribute_(parameter, mesh, {});
      }
    }
    for (auto& buffer : net.buffers()) {
      ts::distribute_(buffer, mesh, {});
    }
    const auto copy = std::dynamic_pointer_cast<NetImpl>(net.clone());
    ASSERT_NE(copy, nullptr);
    const auto theirs = copy->named_parameters();
    for (const auto& item : net.named_parameters()) {
      SCOPED_TRACE(item.key());
      ASSERT_TRUE(ts::is_dtensor(theirs[item.key()]));
      const ts::DTensor a(item.value());
      const ts::DTensor b(theirs[item.key()]);
      EXPECT_EQ(a.spec(), b.spec());
      EXPECT_TRUE(b.is_leaf());
      EXPECT_TRUE(b.requires_grad());
      EXPECT_TRUE(a.full_tensor().equal(b.full_tensor()));
    }
    for (const auto& buffer : copy->buffers()) {
      EXPECT_TRUE(ts::is_dtensor(buffer));
    }
    EXPECT_TRUE(ts::is_dtensor(copy->table->weight));

    // Each has memory of its own.
    const auto ids = ts::distribute_tensor(torch::arange(4), mesh);
    copy->forward(ids).sum().backward();
    torch::optim::SGD(copy->parameters(), 0.5).step();
    EXPECT_FALSE(net.first->weight.grad().defined());
    EXPECT_FALSE(ts::DTensor(net.first->bias)
                     .full_tensor()
                     .equal(ts::DTensor(copy->first->bias).full_tensor()));
  }));
}

// A distributed tensor's data stays distributed.
TEST(ModuleClone, PlainDataIsRefused) {
  EXPECT_TRUE(ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto x = ts::zeros({4}, mesh);
    ts::testing::throws_saying<c10::Error>(
        "incompatible tensor type", [&] { x.set_data(torch::zeros({4})); });
  }));
}

}  // namespace module_clone_test
