// Distributed tensors whose shards are on a GPU, in simulated worlds of 1, 2,
// 3, 4 and 2x2 ranks that share it, beside the same on the CPU. Built where
// libtorch has CUDA; needs a device to run.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <optional>
#include <string_view>

#include "tessera/tessera.h"
#include "testing/layouts.h"

namespace ts = tessera;
namespace F = torch::nn::functional;
using ts::Placement;
using ts::Replicate;
using ts::Shard;

namespace cuda_test {

using Shape = std::vector<int64_t>;

class Cuda : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override { ASSERT_TRUE(torch::cuda::is_available()); }
  // Two runs have the same bits: scripts/gpu.sh compares the reports.
  void TearDown() override { RecordProperty("bits", std::to_string(bits_)); }

  // Every mesh dimension cuts as `p` says.
  ts::DTensor placed(const at::Tensor& value, const Placement& p) const {
    return ts::distribute_tensor(
        value.detach().cuda().requires_grad_(value.requires_grad()),
        mesh_,
        everywhere(p));
  }

  ts::Placements everywhere(const Placement& p) const {
    return ts::Placements(mesh_.ndim(), p);
  }

  void expect_equal(const at::Tensor& actual, const at::Tensor& wanted) {
    const auto full = ts::DTensor(actual.detach()).full_tensor();
    EXPECT_TRUE(full.is_cuda());
    const auto bytes = full.cpu().contiguous();
    bits_ = 31 * bits_ + std::hash<std::string_view>{}(std::string_view(
                             static_cast<const char*>(bytes.const_data_ptr()),
                             bytes.nbytes()));
    EXPECT_TRUE(torch::allclose(full.cpu(), wanted.detach(), 1e-4, 1e-5))
        << full.cpu() - wanted.detach();
  }

  size_t bits_ = 0;
  int64_t ranks_ = c10::multiply_integers(GetParam());
  ts::World world_ = ts::World::simulate(ranks_);
  ts::DeviceMesh mesh_ = ts::init_device_mesh("cuda", GetParam());
};

INSTANTIATE_TEST_SUITE_P(
    Meshes,
    Cuda,
    ::testing::Values(Shape{1}, Shape{2}, Shape{3}, Shape{4}, Shape{2, 2}));

const std::vector<Placement>& layouts() {
  static const std::vector<Placement> all{Replicate(), Shard(0), Shard(1)};
  return all;
}

TEST_P(Cuda, EveryLayoutToEveryOther) {
  const auto x = torch::randn({5, 3});
  for (const auto& from : layouts()) {
    for (const auto& to : layouts()) {
      const auto moved = placed(x, from).redistribute(everywhere(to));
      EXPECT_TRUE(moved.shard(ranks_ - 1).is_cuda());
      expect_equal(moved, x);
    }
  }
}

TEST_P(Cuda, MatrixProductsAndTheirGradients) {
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

TEST_P(Cuda, LookupsOfEveryLayoutAndWay) {
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

// Raised where the host waits for the device: here, for a number.
TEST_P(Cuda, AnIndexOutsideTheTable) {
  const auto w = placed(torch::randn({10, 6}), Shard(0));
  const auto bad = placed(torch::tensor({1, 10}), Replicate());
  const auto use = [&] { at::embedding(w, bad).sum().item(); };
  EXPECT_THROW(use(), c10::IndexError);
  // And not again.
  at::embedding(w, placed(torch::tensor({1, 9}), Replicate())).sum().item();
}

TEST_P(Cuda, BagsOfEveryLayoutAndMode) {
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
        for (const auto strategy :
             {ts::LookupStrategy::Gather, ts::LookupStrategy::Exchange}) {
          const ts::EmbeddingScope scope({.strategy = strategy});
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
TEST_P(Cuda, ShardedBagsAndTheirUpdates) {
  if (mesh_.ndim() > 1) {
    return;  // a ShardedTensor is laid out over one dimension
  }
  using ts::BagStrategy;
  const auto value = torch::arange(54, torch::kFloat).view({9, 6}).sin();
  const auto indices = torch::arange(32).mul(5).remainder(9).view({8, 4});
  const auto grad = torch::arange(48, torch::kFloat).view({8, 6}).cos();
  for (const int64_t mode : {0, 1, 2}) {
    const auto plain = value.clone().requires_grad_();
    const auto wanted = std::get<0>(at::embedding_bag(
        plain, indices.flatten(), torch::arange(8).mul(4), false, mode));
    wanted.backward(grad);
    for (const int64_t dim : {0, 1}) {
      for (const auto strategy : {BagStrategy::Pooled, BagStrategy::Rows}) {
        for (const bool updates : {false, true}) {
          auto weight = ts::ShardedTensor(placed(value, Shard(dim)));
          weight.requires_grad_();
          ts::sharded::EmbeddingBagFuncOptions options{
              .mode = std::vector<std::string>{"sum", "mean", "max"}[mode],
              .strategy = strategy};
          if (updates) {
            options.update = ts::sharded::RowSgd{0.5};
          }
          std::vector<ts::sharded::BagInput> inputs;
          for (const auto& rows : indices.cuda().tensor_split(ranks_)) {
            inputs.push_back({rows});
          }
          const auto bags = ts::sharded::embedding_bag(inputs, weight, options);
          EXPECT_TRUE(torch::allclose(
              torch::cat(bags).detach().cpu(), wanted.detach(), 1e-4, 1e-5));
          torch::autograd::backward(bags, grad.cuda().tensor_split(ranks_));
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

// Older libtorches do not tag these as pointwise.
TEST_P(Cuda, ActivationsInPlace) {
  using Activation = at::Tensor& (*)(at::Tensor&);
  const Activation activations[] = {
      [](at::Tensor& x) -> at::Tensor& { return at::celu_(x, 0.7); },
      [](at::Tensor& x) -> at::Tensor& { return at::elu_(x, 0.7); },
      [](at::Tensor& x) -> at::Tensor& { return at::hardsigmoid_(x); },
      [](at::Tensor& x) -> at::Tensor& { return at::hardswish_(x); },
      [](at::Tensor& x) -> at::Tensor& { return at::hardtanh_(x, -0.5, 0.5); },
      [](at::Tensor& x) -> at::Tensor& { return at::leaky_relu_(x, 0.2); },
      [](at::Tensor& x) -> at::Tensor& { return at::relu_(x); },
      [](at::Tensor& x) -> at::Tensor& { return at::selu_(x); },
      [](at::Tensor& x) -> at::Tensor& { return at::silu_(x); },
      [](at::Tensor& x) -> at::Tensor& { return at::threshold_(x, 0.1, 2); }};
  for (const auto activation : activations) {
    for (const auto& layout : layouts()) {
      auto x = torch::randn({5, 6});
      at::Tensor ours = placed(x, layout);
      activation(ours);
      expect_equal(ours, activation(x));
    }
  }
}

// A step with a table whose rows are sharded, recorded once and run on other
// indices.
TEST_P(Cuda, ATrainingStepInAGraph) {
  const auto value = torch::randn({12, 6});
  const auto target = torch::randn({7, 6}).cuda();
  const auto table = placed(value.clone().requires_grad_(), Shard(0));
  const auto expected = value.cuda().requires_grad_();
  const auto indices = torch::zeros({7}, torch::kLong).cuda();
  const auto step = [&](const at::Tensor& weight,
                        const at::Tensor& ids,
                        const at::Tensor& wanted) {
    weight.mutable_grad() = at::Tensor();
    torch::mse_loss(at::embedding(weight, ids), wanted).backward();
    const torch::NoGradGuard no_grad;
    at::Tensor(weight).sub_(weight.grad(), 0.5);
  };
  const auto ids = placed(indices, Replicate());
  const auto wanted = placed(target, Replicate());
  const auto stream = c10::cuda::getStreamFromPool();
  at::cuda::CUDAGraph graph;
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    step(table, ids, wanted);  // warms up
    step(expected, indices, target);
    table.mutable_grad() = at::Tensor();
    stream.synchronize();
    graph.capture_begin();
    step(table, ids, wanted);
    graph.capture_end();
    for (int run = 0; run < 3; ++run) {
      indices.copy_(torch::randint(0, 12, {7}, torch::kLong));
      for (int64_t rank = 0; rank < ranks_; ++rank) {
        ids.shard(rank).copy_(indices);
      }
      graph.replay();
      step(expected, indices, target);
    }
    stream.synchronize();
  }
  expect_equal(table, expected.cpu());
}

// The same with bags, of tables whose rows or columns are sharded.
TEST_P(Cuda, ATrainingStepOfBagsInAGraph) {
  for (const auto& layout : {Shard(0), Shard(1)}) {
    for (const int64_t mode : {0, 1}) {
      SCOPED_TRACE(layout.str());
      const auto value = torch::randn({12, 6});
      const auto target = torch::randn({4, 6}).cuda();
      const auto table = placed(value.clone().requires_grad_(), layout);
      const auto expected = value.cuda().requires_grad_();
      const auto indices = torch::zeros({8}, torch::kLong).cuda();
      const auto offsets = torch::tensor({0, 3, 3, 6}, torch::kLong).cuda();
      const auto step = [&](const at::Tensor& weight,
                            const at::Tensor& ids,
                            const at::Tensor& starts,
                            const at::Tensor& wanted) {
        weight.mutable_grad() = at::Tensor();
        const auto bags =
            std::get<0>(at::embedding_bag(weight, ids, starts, false, mode));
        torch::mse_loss(bags, wanted).backward();
        const torch::NoGradGuard no_grad;
        at::Tensor(weight).sub_(weight.grad(), 0.5);
      };
      const auto ids = placed(indices, Replicate());
      const auto starts = placed(offsets, Replicate());
      const auto wanted = placed(target, Replicate());
      const auto stream = c10::cuda::getStreamFromPool();
      at::cuda::CUDAGraph graph;
      {
        const c10::cuda::CUDAStreamGuard guard(stream);
        step(table, ids, starts, wanted);  // warms up
        step(expected, indices, offsets, target);
        table.mutable_grad() = at::Tensor();
        stream.synchronize();
        graph.capture_begin();
        step(table, ids, starts, wanted);
        graph.capture_end();
        for (int run = 0; run < 3; ++run) {
          indices.copy_(torch::randint(0, 12, {8}, torch::kLong));
          for (int64_t rank = 0; rank < ranks_; ++rank) {
            ids.shard(rank).copy_(indices);
          }
          graph.replay();
          step(expected, indices, offsets, target);
        }
        stream.synchronize();
      }
      expect_equal(table, expected.cpu());
    }
  }
}

// Counts what makes the host wait for the device.
class Waits : c10::WarningHandler {
 public:
  Waits() : guard_(this) { mode(c10::cuda::SyncDebugMode::L_WARN); }
  ~Waits() override { mode(c10::cuda::SyncDebugMode::L_DISABLED); }
  int64_t count() const { return count_; }

 private:
  static void mode(c10::cuda::SyncDebugMode mode) {
    c10::cuda::warning_state().set_sync_debug_mode(mode);
  }
  void process(const c10::Warning& warning) override {
    count_ += warning.msg().find("synchronizing") != std::string::npos ? 1 : 0;
  }

  std::atomic<int64_t> count_{0};
  c10::WarningUtils::WarningHandlerGuard guard_;
};

// Each rank waits once at most, where it learns how many rows go to whom.
TEST_P(Cuda, ALookupWaitsOnceForTheDevice) {
  const auto w = placed(torch::randn({40, 6}).requires_grad_(), Shard(0));
  const auto ids = placed(torch::randint(0, 40, {12}, torch::kLong), Shard(0));
  const auto grad = placed(torch::randn({12, 6}), Shard(0));
  for (const auto strategy :
       {ts::LookupStrategy::Gather, ts::LookupStrategy::Exchange}) {
    const ts::EmbeddingScope scope({.strategy = strategy});
    at::embedding(w, ids).backward(grad);  // plans
    w.mutable_grad() = at::Tensor();
    const Waits waits;
    const auto rows = at::embedding(w, ids);
    EXPECT_LE(
        waits.count(), strategy == ts::LookupStrategy::Exchange ? ranks_ : 0);
    const int64_t before = waits.count();
    rows.backward(grad);
    EXPECT_EQ(waits.count(), before);
    w.mutable_grad() = at::Tensor();
  }
}

// The same of bags on a ShardedTensor, whose indices are routed on the device:
// with padding, weights and empty bags, beside those of a plain table.
TEST_P(Cuda, ShardedBagsWaitOnceForTheDevice) {
  if (mesh_.ndim() > 1) {
    return;  // a ShardedTensor is laid out over one dimension
  }
  using ts::BagStrategy;
  const int64_t rows = 11;
  const auto value =
      torch::arange(rows * 6, torch::kFloat).view({rows, 6}).sin();
  const std::vector<int64_t> lengths{3, 0, 5, 1, 7, 0, 2, 4};
  struct Case {
    int64_t mode;
    std::optional<int64_t> padding;
    bool weighted;
  };
  for (const auto& c : std::vector<Case>{
           {0, {}, false},
           {0, 4, true},
           {1, 4, false},
           {2, {}, false},
           {2, 4, false}}) {
    for (const auto strategy :
         {BagStrategy::Pooled, BagStrategy::Rows, BagStrategy::Cheapest}) {
      SCOPED_TRACE(
          "mode " + std::to_string(c.mode) + ", strategy " +
          std::to_string(static_cast<int>(strategy)));
      auto weight = ts::ShardedTensor(placed(value, Shard(0)));
      weight.requires_grad_();
      const auto plain = value.clone().requires_grad_();
      ts::sharded::EmbeddingBagFuncOptions options{
          .mode = std::vector<std::string>{"sum", "mean", "max"}[c.mode],
          .strategy = strategy};
      options.padding_idx = c.padding;
      std::vector<ts::sharded::BagInput> inputs;
      std::vector<at::Tensor> wanted;
      std::vector<at::Tensor> grads;
      for (int64_t r = 0; r < ranks_; ++r) {
        std::vector<int64_t> offsets{0};
        for (const int64_t length : lengths) {
          offsets.push_back(offsets.back() + (length + r) % 6);
        }
        const int64_t n = offsets.back();
        offsets.pop_back();
        const auto indices =
            torch::arange(n, torch::kLong).add(r).mul(7).remainder(rows);
        const auto scales = torch::arange(n, torch::kFloat).cos();
        const auto starts = torch::tensor(offsets, torch::kLong);
        inputs.push_back({indices.cuda(), starts.cuda()});
        if (c.weighted) {
          inputs.back().per_sample_weights = scales.cuda();
        }
        wanted.push_back(std::get<0>(at::embedding_bag(
            plain,
            indices,
            starts,
            false,
            c.mode,
            false,
            c.weighted ? scales : at::Tensor(),
            false,
            c.padding)));
        grads.push_back(torch::randn_like(wanted.back().detach()));
        wanted.back().backward(grads.back());
        grads.back() = grads.back().cuda();
      }
      torch::cuda::synchronize();
      const Waits waits;
      const auto bags = ts::sharded::embedding_bag(inputs, weight, options);
      // One that has all rows itself asks nobody.
      EXPECT_LE(waits.count(), ranks_ == 1 ? 0 : ranks_);
      const int64_t before = waits.count();
      torch::autograd::backward(bags, grads);
      EXPECT_EQ(waits.count(), before);
      for (int64_t r = 0; r < ranks_; ++r) {
        EXPECT_TRUE(torch::allclose(
            bags[r].detach().cpu(), wanted[r].detach(), 1e-4, 1e-5));
      }
      expect_equal(weight.grad().dtensor(), plain.grad());
    }
  }
}

// A bad index is found where the host waits, before anything is sent.
TEST_P(Cuda, ShardedBagsWithABadIndex) {
  if (mesh_.ndim() > 1 || ranks_ == 1) {
    return;
  }
  using ts::BagStrategy;
  for (const auto strategy :
       {BagStrategy::Pooled, BagStrategy::Rows, BagStrategy::Cheapest}) {
    const auto weight =
        ts::ShardedTensor(placed(torch::randn({11, 6}), Shard(0)));
    ts::sharded::EmbeddingBagFuncOptions options{
        .mode = "sum", .strategy = strategy};
    std::vector<ts::sharded::BagInput> inputs(
        ranks_, {torch::tensor({1, 2}).cuda(), torch::tensor({0}).cuda()});
    inputs.back().input = torch::tensor({1, 11}).cuda();
    EXPECT_THROW(
        ts::sharded::embedding_bag(inputs, weight, options), c10::IndexError);
    inputs.back().input = torch::tensor({1, 10}).cuda();
    ts::sharded::embedding_bag(inputs, weight, options);
    // Offsets that decrease.
    inputs.back().offsets = torch::tensor({0, 2, 1}).cuda();
    EXPECT_THROW(
        ts::sharded::embedding_bag(inputs, weight, options), c10::ValueError);
    inputs.back().offsets = torch::tensor({0, 1}).cuda();
    ts::sharded::embedding_bag(inputs, weight, options);
  }
  torch::cuda::synchronize();
}

TEST_P(Cuda, AClassifierTrains) {
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
    ts::distribute_(parameter, mesh_, everywhere(Shard(0)));
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

}  // namespace cuda_test
