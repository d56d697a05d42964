// Ranks in processes of their own that share one GPU: their tensors go through
// host memory. Started by a launcher (scripts/gpu.sh does).
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/process_group.h"
#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;
namespace F = torch::nn::functional;
using ts::Placement;
using ts::Replicate;
using ts::Shard;

namespace cuda_processes_test {

class CudaProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(ts::testing::over_processes()) << "start it with a launcher";
    ranks_ = ts::testing::test_world().size();
    cuda_.emplace(ts::init_device_mesh("cuda", {ranks_}));
    cpu_.emplace(ts::init_device_mesh("cpu", {ranks_}));
  }

  ts::DTensor on_gpu(const at::Tensor& value, const Placement& p) const {
    return ts::distribute_tensor(
        value.detach().cuda().requires_grad_(value.requires_grad()),
        *cuda_,
        {p});
  }
  ts::DTensor on_cpu(const at::Tensor& value, const Placement& p) const {
    return ts::distribute_tensor(
        value.detach().requires_grad_(value.requires_grad()), *cpu_, {p});
  }

  static void expect_equal(const at::Tensor& actual, const at::Tensor& wanted) {
    const auto full = ts::DTensor(actual.detach()).full_tensor();
    EXPECT_TRUE(torch::allclose(full.cpu(), wanted.detach(), 1e-4, 1e-5))
        << full.cpu() - wanted.detach();
  }

  int64_t ranks_ = 0;
  std::optional<ts::DeviceMesh> cuda_;
  std::optional<ts::DeviceMesh> cpu_;
};

// A group of one rank; it is started alone.
TEST(CudaOneProcess, ItsGroupIsNccl) {
  ASSERT_TRUE(ts::testing::over_processes()) << "start it with a launcher";
  const int64_t ranks = ts::testing::test_world().size();
  ASSERT_EQ(ranks, 1);
  const auto group = ts::get_group(ts::init_device_mesh("cuda", {1}), 0);
  EXPECT_EQ(group->getBackendName(), "nccl");
  std::vector<at::Tensor> x{torch::ones({3}, torch::kCUDA)};
  group->allreduce(x)->wait();
  EXPECT_TRUE(at::equal(x[0].cpu(), torch::ones({3})));
}

const std::vector<Placement>& layouts() {
  static const std::vector<Placement> all{Replicate(), Shard(0), Shard(1)};
  return all;
}

TEST_F(CudaProcesses, EveryLayoutToEveryOther) {
  const auto x = torch::randn({5, 3});
  for (const auto& from : layouts()) {
    for (const auto& to : layouts()) {
      const auto moved = on_gpu(x, from).redistribute({to});
      EXPECT_TRUE(moved.to_local().is_cuda());
      expect_equal(moved, x);
    }
  }
}

TEST_F(CudaProcesses, LookupsOfEveryLayoutAndWay) {
  const auto indices = torch::randint(0, 10, {7, 3}, torch::kLong);
  const auto grad = torch::randn({7, 3, 6});
  for (const auto strategy :
       {ts::LookupStrategy::Gather, ts::LookupStrategy::Exchange}) {
    const ts::EmbeddingScope scope({.strategy = strategy});
    for (const auto& table : layouts()) {
      for (const auto& batch : layouts()) {
        for (const bool sparse : {false, true}) {
          SCOPED_TRACE(table.str() + " by " + batch.str());
          const auto w = torch::randn({10, 6}).requires_grad_();
          const auto rows = at::embedding(w, indices, 3, false, sparse);
          rows.backward(grad);
          const auto dw = on_gpu(w, table);
          const auto found =
              at::embedding(dw, on_gpu(indices, batch), 3, false, sparse);
          found.backward(on_gpu(grad, Replicate()));
          expect_equal(found, rows);
          expect_equal(dw.grad(), sparse ? w.grad().to_dense() : w.grad());
        }
      }
    }
  }
}

TEST_F(CudaProcesses, ABadIndexIsRaisedOnEveryRank) {
  const auto w = on_gpu(torch::randn({10, 6}), Shard(0));
  const auto bad = on_gpu(torch::tensor({1, 10}), Replicate());
  EXPECT_THROW(at::embedding(w, bad).sum().item(), c10::IndexError);
  at::embedding(w, on_gpu(torch::tensor({1, 9}), Replicate())).sum().item();
}

// Autograd runs the nodes of each device in a thread of its own, at the same
// time; what they send must not mix.
TEST_F(CudaProcesses, ATableOnTheCpuWithAModelOnTheGpu) {
  const int64_t batch = 8 * ranks_;
  const auto draw = [&](auto&& step) {
    torch::manual_seed(4);
    std::vector<double> losses;
    for (int i = 0; i < 10; ++i) {
      const auto ids = torch::randint(0, 30, {batch}, torch::kLong);
      const auto wanted = torch::randn({batch, 1});
      losses.push_back(step(ids, wanted));
    }
    return losses;
  };
  const auto rows = torch::randn({30, 6});
  const auto first = torch::randn({5, 6});
  const auto second = torch::randn({1, 5});
  const auto model =
      [](const at::Tensor& x, const at::Tensor& w1, const at::Tensor& w2) {
        return F::linear(at::relu(F::linear(x, w1)), w2);
      };
  const auto update = [](std::vector<at::Tensor> parameters) {
    const torch::NoGradGuard no_grad;
    for (auto& p : parameters) {
      p.sub_(p.grad(), 0.05);
      p.mutable_grad() = at::Tensor();
    }
  };

  at::Tensor table = rows.clone().requires_grad_();
  at::Tensor w1 = first.clone().requires_grad_();
  at::Tensor w2 = second.clone().requires_grad_();
  const auto expected =
      draw([&](const at::Tensor& ids, const at::Tensor& wanted) {
        const auto found = at::embedding(table, ids);
        const auto loss = torch::mse_loss(model(found, w1, w2), wanted);
        torch::autograd::backward({loss, found.pow(2).mean()}, {});
        update({table, w1, w2});
        return loss.item<double>();
      });
  const at::Tensor trained = table;

  for (const auto& layout : {Shard(0), Shard(1)}) {
    table = on_cpu(rows.clone().requires_grad_(), layout);
    w1 = on_gpu(first.clone().requires_grad_(), Shard(0));
    w2 = on_gpu(second.clone().requires_grad_(), Shard(1));
    const auto ours =
        draw([&](const at::Tensor& ids, const at::Tensor& wanted) {
          const auto found =
              ts::DTensor(at::embedding(table, on_cpu(ids, Shard(0))))
                  .redistribute({Shard(0)});
          const auto moved = ts::DTensor::from_local(
              found.to_local().cuda(), *cuda_, {Shard(0)});
          const auto loss =
              torch::mse_loss(model(moved, w1, w2), on_gpu(wanted, Shard(0)));
          torch::autograd::backward({loss, found.pow(2).mean()}, {});
          update({table, w1, w2});
          return ts::DTensor(loss.detach()).full_tensor().item<double>();
        });
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(ours[i], expected[i], 1e-3 * (1 + std::abs(expected[i])));
    }
    expect_equal(table, trained);
  }
}

}  // namespace cuda_processes_test
