// Modules and optimizers by name: resumed, they go on with the same numbers.
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include <csignal>

#include "testing/run_directory.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace tessera {
namespace module_state_test {

using testing::RunDirectory;
using testing::throws_saying;

struct NetImpl : torch::nn::Module {
  torch::nn::Embedding table;
  torch::nn::Linear linear{8, 3};
  torch::nn::Dropout dropout{0.5};
  at::Tensor count = register_buffer("count", torch::zeros({}));

  explicit NetImpl(bool sparse = false)
      : table(torch::nn::EmbeddingOptions(13, 8).sparse(sparse)) {
    register_module("table", table);
    register_module("linear", linear);
    register_module("dropout", dropout);
  }
  at::Tensor forward(const at::Tensor& ids) {
    count.add_(1);
    return linear(dropout(table(ids)));
  }
};
TORCH_MODULE(Net);

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(torch::nn::Module&)>;

template <typename Optimizer, typename Options>
MakeOptimizer maker(Options options) {
  return [options](torch::nn::Module& module)
             -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<Optimizer>(module.parameters(), options);
  };
}

std::vector<MakeOptimizer> optimizers() {
  namespace optim = torch::optim;
  return {
      maker<optim::Adam>(optim::AdamOptions(0.1).amsgrad(true)),
      maker<optim::AdamW>(optim::AdamWOptions(0.1)),
      maker<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9)),
      maker<optim::RMSprop>(
          optim::RMSpropOptions(0.01).momentum(0.5).centered(true))};
}

void shard(Net& net, const DeviceMesh& mesh, Placement placement) {
  distribute_module(
      net.ptr(), mesh, [&](const std::string& name, auto&, const auto&) {
        if (name == "table") distribute_(net->table->weight, mesh, {placement});
        if (name == "linear") {
          distribute_(net->linear->weight, mesh, {placement});
        }
      });
}

// Trains by the losses' sums; returns the loss of each step.
std::vector<double> train(
    Net& net,
    torch::optim::Optimizer& optimizer,
    const DeviceMesh& mesh,
    int64_t begin,
    int64_t end) {
  std::vector<double> losses;
  for (int64_t step = begin; step < end; ++step) {
    const auto ids = torch::arange(6).add(step).remainder(13);
    optimizer.zero_grad();
    const auto loss =
        net->forward(distribute_tensor(ids, mesh)).square().mean();
    loss.backward();
    optimizer.step();
    losses.push_back(DTensor(loss).full_tensor().item<double>());
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(group.options().get_lr() * 0.9);  // a scheduler
    }
  }
  return losses;
}

class ModuleState : public ::testing::Test {
 protected:
  World& world_ = testing::test_world();
  const DeviceMesh mesh_ = init_device_mesh("cpu", {4});
  const RunDirectory run_;
};

TEST_F(ModuleState, ResumedLossesAreTheSameBits) {
  for (const auto& make : optimizers()) {
    run_.reset();
    torch::manual_seed(3);
    Net net;
    shard(net, mesh_, Shard(0));
    auto optimizer = make(*net);
    train(net, *optimizer, mesh_, 0, 3);
    save(run_.path(), *net, {optimizer.get()}, {.step = 3});
    const auto expected = train(net, *optimizer, mesh_, 3, 7);

    torch::manual_seed(99);
    Net again;
    shard(again, mesh_, Shard(0));
    auto resumed = make(*again);
    const auto found = load_latest(run_.path(), *again, {resumed.get()});
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->step, 3);
    EXPECT_EQ(train(again, *resumed, mesh_, 3, 7), expected);
    EXPECT_EQ(DTensor(again->count).full_tensor().item<int64_t>(), 7);
  }
}

// As docs/embeddings.md has it: the optimizer is given the module's parameters.
TEST_F(ModuleState, SparseTablesAreTrainedAndSaved) {
  namespace optim = torch::optim;
  for (const auto& make :
       {maker<optim::Adagrad>(optim::AdagradOptions(0.1)),
        maker<optim::SGD>(optim::SGDOptions(0.1))}) {
    run_.reset();
    torch::manual_seed(3);
    Net dense;
    shard(dense, mesh_, Shard(0));
    auto its_optimizer = make(*dense);
    torch::manual_seed(3);
    Net net(true);
    shard(net, mesh_, Shard(0));
    auto optimizer = make(*net);
    torch::manual_seed(5);
    const auto expected = train(dense, *its_optimizer, mesh_, 0, 5);
    torch::manual_seed(5);
    const auto losses = train(net, *optimizer, mesh_, 0, 5);
    EXPECT_TRUE(net->table->weight.grad().is_sparse());
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], expected[i], 1e-6);
    }
    EXPECT_TRUE(torch::allclose(
        DTensor(net->table->weight.detach()).full_tensor(),
        DTensor(dense->table->weight.detach()).full_tensor()));
    save(run_.path(), *net, {optimizer.get()}, {.step = 5});
    const auto later = train(net, *optimizer, mesh_, 5, 8);
    Net again(true);
    shard(again, mesh_, Shard(0));
    auto resumed = make(*again);
    ASSERT_TRUE(load_latest(run_.path(), *again, {resumed.get()}).has_value());
    EXPECT_EQ(train(again, *resumed, mesh_, 5, 8), later);
  }
}

// In another layout sums have another order.
TEST_F(ModuleState, ResumedInAnotherLayout) {
  for (const auto& make : optimizers()) {
    run_.reset();
    torch::manual_seed(3);
    Net net;
    shard(net, mesh_, Shard(0));
    auto optimizer = make(*net);
    train(net, *optimizer, mesh_, 0, 3);
    save(run_.path(), *net, {optimizer.get()});
    const auto expected = train(net, *optimizer, mesh_, 3, 6);

    Net again;
    shard(again, mesh_, Shard(1));
    auto resumed = make(*again);
    // It has a state of its own by now.
    train(again, *resumed, mesh_, 0, 1);
    load(run_ / "step_0", *again, {resumed.get()}, {.generators = true});
    const auto losses = train(again, *resumed, mesh_, 3, 6);
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], expected[i], 1e-5 * std::abs(expected[i]));
    }
  }
}

TEST_F(ModuleState, ServedWithoutAWorld) {
  Net net;
  shard(net, mesh_, Shard(0));
  save(run_.path(), *net);
  const auto table = DTensor(net->table->weight).full_tensor();
  if (testing::over_processes()) {
    const auto tensors = load_plain(run_ / "step_0");
    EXPECT_TRUE(torch::equal(tensors.at("table.weight"), table));
    return;
  }
  Net plain;
  load(run_ / "step_0", *plain);
  EXPECT_FALSE(is_dtensor(plain->table->weight));
  EXPECT_TRUE(torch::equal(plain->table->weight, table));
  // A table that stays in the file.
  Net mapped;
  const auto tensors =
      load_plain(run_ / "step_0", {.names = {"table.weight"}, .mmap = true});
  mapped->table->weight.set_data(tensors.at("table.weight"));
  const auto ids = torch::tensor({3, 12});
  EXPECT_TRUE(torch::equal(mapped->table(ids), table.index_select(0, ids)));
}

TEST_F(ModuleState, StrictUnlessToldOtherwise) {
  Net net;
  save(
      run_.path(),
      {{"table.weight", net->table->weight}, {"more", net->count}});
  throws_saying<c10::ValueError>(
      "holds 'more', which the module does not have",
      [&] { load(run_ / "step_0", *net); });
  Net other;
  load(run_ / "step_0", *other, {}, {.strict = false});
  EXPECT_TRUE(torch::equal(other->table->weight, net->table->weight));
  save(run_.path(), {{"table.weight", net->table->weight}});
  throws_saying<c10::ValueError>(
      "does not hold 'count', 'linear.bias', 'linear.weight'",
      [&] { load(run_ / "step_0", *net); });
}

TEST_F(ModuleState, OptimizersThatWereNotSaved) {
  Net net;
  torch::optim::SGD optimizer(
      net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  net->table(torch::tensor({1})).sum().backward();
  optimizer.step();
  ASSERT_FALSE(optimizer.state().empty());
  save(run_.path(), *net);
  throws_saying<c10::ValueError>(
      "does not hold 'optimizer.', the state of optimizer 0",
      [&] { load(run_ / "step_0", *net, {&optimizer}); });
  throws_saying<c10::ValueError>("does not hold 'optimizer.'", [&] {
    load_latest(run_.path(), *net, {&optimizer});
  });
  load(run_ / "step_0", *net, {&optimizer}, {.strict = false});
  EXPECT_FALSE(optimizer.state().empty());
}

TEST_F(ModuleState, OptimizersOfOtherParameters) {
  Net net;
  Net other;
  torch::optim::SGD optimizer(other->parameters(), 0.1);
  throws_saying<c10::ValueError>("that the module does not have", [&] {
    save(run_.path(), *net, {&optimizer});
  });
}

// The losses of a loop over `total` steps; SIGTERM comes in step `struck`.
std::vector<double> looped(
    const std::string& root,
    const DeviceMesh& mesh,
    int64_t total,
    int64_t struck,
    bool asynchronous,
    bool& preempted) {
  torch::manual_seed(3);
  Net net;
  shard(net, mesh, Shard(0));
  torch::optim::AdamW optimizer(net->parameters());
  TrainingLoop loop(
      root,
      *net,
      {&optimizer},
      {.total = total, .every = 2, .asynchronous = asynchronous});
  std::vector<double> losses;
  while (loop.next()) {
    const auto step = loop.step();
    if (step == struck && RunDirectory::leads()) std::raise(SIGTERM);
    losses.push_back(train(net, optimizer, mesh, step, step + 1)[0]);
  }
  preempted = loop.preempted();
  return losses;
}

TEST_F(ModuleState, LoopsResumeAndHeedSigterm) {
  for (const bool asynchronous : {false, true}) {
    run_.reset();
    bool preempted = false;
    const auto expected =
        looped(run_ / "a", mesh_, 7, -1, asynchronous, preempted);
    ASSERT_EQ(expected.size(), 7);
    EXPECT_FALSE(preempted);
    // Ended after three steps, whichever rank got the signal.
    const auto first = looped(run_ / "b", mesh_, 7, 2, asynchronous, preempted);
    EXPECT_TRUE(preempted);
    EXPECT_EQ(
        first, (std::vector<double>(expected.begin(), expected.begin() + 3)));
    EXPECT_EQ(checkpoint_info(run_ / "b/step_3").step, 3);
    const auto rest = looped(run_ / "b", mesh_, 7, -1, asynchronous, preempted);
    EXPECT_EQ(
        rest, (std::vector<double>(expected.begin() + 3, expected.end())));
    // Nothing is left to do.
    EXPECT_TRUE(
        looped(run_ / "b", mesh_, 7, -1, asynchronous, preempted).empty());
    EXPECT_EQ(
        checkpoints_in(run_ / "b"),
        (std::vector<std::string>{run_ / "b/step_7", run_ / "b/step_6"}));
  }
  Net net;
  throws_saying<c10::ValueError>("every 1 or more", [&] {
    TrainingLoop(run_.path(), *net, {}, {.total = 1, .every = 0});
  });
}

TEST_F(ModuleState, MergedIntoOneFile) {
  Net net;
  shard(net, mesh_, Shard(1));
  save(run_.path(), *net, {}, {.prefix = "model."});
  run_.once(
      [&] { merge(run_ / "step_0", run_ / "all.safetensors", {"model."}); });
  Net plain;
  load(run_ / "all.safetensors", *plain);
  EXPECT_TRUE(torch::equal(
      plain->linear->weight, DTensor(net->linear->weight).full_tensor()));
  // Straight into shards.
  Net sharded;
  shard(sharded, mesh_, Shard(0));
  load(run_ / "all.safetensors", *sharded);
  EXPECT_TRUE(torch::equal(
      DTensor(sharded->table->weight).full_tensor(),
      DTensor(net->table->weight).full_tensor()));
}

}  // namespace module_state_test
}  // namespace tessera
