// Distributed tensors whose shards are on a GPU, in a simulated world of four
// ranks that share it, beside the same on the CPU. Built where libtorch has
// CUDA; needs a device to run.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/layouts.h"

namespace ts = tessera;
namespace F = torch::nn::functional;
using ts::Placement;
using ts::Replicate;
using ts::Shard;

namespace {

class Cuda : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(torch::cuda::is_available()); }

  ts::DTensor placed(const at::Tensor& value, const Placement& p) const {
    return ts::distribute_tensor(
        value.detach().cuda().requires_grad_(value.requires_grad()),
        mesh_,
        {p});
  }

  static void expect_equal(const at::Tensor& actual, const at::Tensor& wanted) {
    const auto full = ts::DTensor(actual.detach()).full_tensor();
    EXPECT_TRUE(full.is_cuda());
    EXPECT_TRUE(torch::allclose(full.cpu(), wanted.detach(), 1e-4, 1e-5))
        << full.cpu() - wanted.detach();
  }

  ts::World world_ = ts::World::simulate(4);
  ts::DeviceMesh mesh_ = ts::init_device_mesh("cuda", {4});
};

const std::vector<Placement>& layouts() {
  static const std::vector<Placement> all{Replicate(), Shard(0), Shard(1)};
  return all;
}

TEST_F(Cuda, EveryLayoutToEveryOther) {
  const auto x = torch::randn({5, 3});
  for (const auto& from : layouts()) {
    for (const auto& to : layouts()) {
      const auto moved = placed(x, from).redistribute({to});
      EXPECT_TRUE(moved.shard(3).is_cuda());
      expect_equal(moved, x);
    }
  }
}

TEST_F(Cuda, MatrixProductsAndTheirGradients) {
  for (const auto& left : layouts()) {
    for (const auto& right : layouts()) {
      const auto a = torch::randn({6, 5}).requires_grad_();
      const auto b = torch::randn({5, 7}).requires_grad_();
      at::mm(a, b).relu().sum().backward();
      const auto da = placed(a, left);
      const auto db = placed(b, right);
      at::mm(da, db).relu().sum().backward();
      expect_equal(da.grad(), a.grad());
      expect_equal(db.grad(), b.grad());
    }
  }
}

TEST_F(Cuda, LookupsOfEveryLayoutAndWay) {
  const auto indices = torch::randint(0, 10, {7, 3}, torch::kLong);
  const auto grad = torch::randn({7, 3, 6});
  for (const auto way : {ts::LookupWay::Gather, ts::LookupWay::Exchange}) {
    const ts::EmbeddingScope scope({.way = way});
    for (const auto& table : layouts()) {
      for (const auto& batch : layouts()) {
        for (const bool sparse : {false, true}) {
          SCOPED_TRACE(table.str() + " by " + batch.str());
          const auto w = torch::randn({10, 6}).requires_grad_();
          const auto rows = at::embedding(w, indices, 3, false, sparse);
          rows.backward(grad);
          const auto dw = placed(w, table);
          const auto found =
              at::embedding(dw, placed(indices, batch), 3, false, sparse);
          found.backward(placed(grad, Replicate()));
          expect_equal(found, rows);
          expect_equal(dw.grad(), sparse ? w.grad().to_dense() : w.grad());
        }
      }
    }
  }
}

TEST_F(Cuda, AnIndexOutsideTheTable) {
  const auto w = placed(torch::randn({10, 6}), Shard(0));
  const auto bad = placed(torch::tensor({1, 10}), Replicate());
  EXPECT_THROW(at::embedding(w, bad), c10::IndexError);
}

TEST_F(Cuda, BagsOfEveryLayoutAndMode) {
  const auto indices = torch::randint(0, 10, {8, 3}, torch::kLong);
  const auto grad = torch::randn({8, 6});
  const auto pooled = [&](int mode, const at::Tensor& i, const at::Tensor& w) {
    F::EmbeddingBagFuncOptions options;
    mode == 0   ? options.mode(torch::kSum)
    : mode == 1 ? options.mode(torch::kMean)
                : options.mode(torch::kMax);
    return F::embedding_bag(i, w, options);
  };
  for (const int mode : {0, 1, 2}) {
    for (const auto& table : layouts()) {
      for (const auto& batch : {Replicate(), Shard(0)}) {
        SCOPED_TRACE(table.str() + " by " + batch.str());
        const auto w = torch::randn({10, 6}).requires_grad_();
        const auto bags = pooled(mode, indices, w);
        bags.backward(grad);
        for (const auto way :
             {ts::LookupWay::Gather, ts::LookupWay::Exchange}) {
          const ts::EmbeddingScope scope({.way = way});
          const auto dw = placed(w, table);
          const auto found = pooled(mode, placed(indices, batch), dw);
          found.backward(placed(grad, Replicate()));
          expect_equal(found, bags);
          expect_equal(dw.grad(), w.grad());
        }
      }
    }
  }
}

// Each rank's own bags, with a gradient and with an update in its place.
TEST_F(Cuda, ShardedBagsAndTheirUpdates) {
  using ts::BagWay;
  const auto value = torch::arange(54, torch::kFloat).view({9, 6}).sin();
  const auto indices = torch::arange(32).mul(5).remainder(9).view({8, 4});
  const auto grad = torch::arange(48, torch::kFloat).view({8, 6}).cos();
  for (const int64_t mode : {0, 1, 2}) {
    const auto plain = value.clone().requires_grad_();
    const auto wanted = std::get<0>(at::embedding_bag(
        plain, indices.flatten(), torch::arange(8).mul(4), false, mode));
    wanted.backward(grad);
    for (const int64_t dim : {0, 1}) {
      for (const auto way : {BagWay::Pooled, BagWay::Rows}) {
        for (const bool updates : {false, true}) {
          auto weight = ts::ShardedTensor(placed(value, Shard(dim)));
          weight.requires_grad_();
          ts::sharded::EmbeddingBagFuncOptions options{
              .mode = std::vector<std::string>{"sum", "mean", "max"}[mode],
              .way = way};
          if (updates) {
            options.update = ts::sharded::RowSgd{0.5};
          }
          std::vector<ts::sharded::BagInput> inputs;
          for (const auto& rows : indices.cuda().chunk(4)) {
            inputs.push_back({rows});
          }
          const auto bags = ts::sharded::embedding_bag(inputs, weight, options);
          EXPECT_TRUE(torch::allclose(
              torch::cat(bags).detach().cpu(), wanted.detach(), 1e-4, 1e-5));
          torch::autograd::backward(bags, grad.cuda().chunk(4));
          EXPECT_EQ(weight.grad().defined(), !updates);
          expect_equal(
              weight.dtensor(), updates ? value - 0.5 * plain.grad() : value);
          if (!updates) {
            expect_equal(weight.grad().dtensor(), plain.grad());
          }
        }
      }
    }
  }
}

TEST_F(Cuda, AClassifierTrains) {
  torch::manual_seed(1);
  torch::nn::Sequential plain(
      torch::nn::Linear(6, 8), torch::nn::ReLU(), torch::nn::Linear(8, 3));
  torch::nn::Sequential model(
      torch::nn::Linear(6, 8), torch::nn::ReLU(), torch::nn::Linear(8, 3));
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < plain->parameters().size(); ++i) {
      model->parameters()[i].copy_(plain->parameters()[i]);
    }
  }
  model->to(torch::kCUDA);
  torch::optim::Adam optimizer(model->parameters(), 0.1);
  torch::optim::Adam plain_optimizer(plain->parameters(), 0.1);
  for (auto& parameter : model->parameters()) {
    ts::distribute_(parameter, mesh_, {Shard(0)});
  }
  const auto x = torch::randn({10, 6});
  const auto y = torch::randint(0, 3, {10}, torch::kLong);
  for (int step = 0; step < 3; ++step) {
    plain_optimizer.zero_grad();
    optimizer.zero_grad();
    F::cross_entropy(plain->forward(x), y).backward();
    // Sequential wants an at::Tensor by type.
    const at::Tensor batch = placed(x, Shard(0));
    F::cross_entropy(model->forward(batch), placed(y, Shard(0))).backward();
    plain_optimizer.step();
    optimizer.step();
  }
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    expect_equal(model->parameters()[i], plain->parameters()[i]);
  }
}

}  // namespace
