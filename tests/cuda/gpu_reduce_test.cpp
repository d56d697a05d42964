// Reductions over simulated ranks on a GPU: the bits of the CPU's, in one
// kernel.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/reduce.h"
#include "tessera/tessera.h"

namespace tessera::detail {
namespace gpu_reduce_test {

constexpr ReduceOp kOps[] = {
    ReduceOp::Sum,
    ReduceOp::Avg,
    ReduceOp::Product,
    ReduceOp::Min,
    ReduceOp::Max};

std::vector<at::Tensor> made_terms(
    int64_t count, int64_t numel, at::ScalarType dtype) {
  std::vector<at::Tensor> terms;
  for (int64_t i = 0; i < count; ++i) {
    auto term = at::randn({numel}).mul_(3).to(dtype);
    if (numel > 4 && at::isFloatingType(dtype)) {
      term[i % numel] = std::numeric_limits<double>::quiet_NaN();
      term[3] = std::numeric_limits<double>::infinity();
    }
    terms.push_back(term);
  }
  return terms;
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return at::isFloatingType(a.scalar_type())
             ? at::allclose(a, b, 0, 0, /*equal_nan=*/true)
             : at::equal(a, b);
}

TEST(GpuReduce, HasTheBitsOfTheCpu) {
  torch::manual_seed(5);
  for (const auto dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong}) {
    for (const int64_t count : {1, 2, 3, 4, 7, 64, 65}) {
      for (const int64_t numel : {0, 1, 7, 4096, 100'003}) {
        for (const auto op : kOps) {
          if (dtype == at::kLong && op == ReduceOp::Avg) continue;
          SCOPED_TRACE(
              std::string(c10::toString(dtype)) + ", " + std::to_string(count) +
              " x " + std::to_string(numel) + ", " +
              std::to_string(static_cast<int>(op)));
          const auto terms = made_terms(count, numel, dtype);
          const auto wanted = at::empty({numel}, dtype);
          reduce_into(wanted, terms, op);
          std::vector<at::Tensor> on_gpu;
          std::vector<at::Tensor> strided;
          for (const auto& term : terms) {
            on_gpu.push_back(term.cuda());
            strided.push_back(at::stack({term, term}, 1).cuda().select(1, 1));
          }
          const std::vector<at::Tensor> outs{
              at::empty_like(on_gpu[0]), at::empty_like(on_gpu[0])};
          reduce_into_each(outs, on_gpu, op);
          EXPECT_TRUE(same(outs[0].cpu(), wanted));
          EXPECT_TRUE(same(outs[1].cpu(), wanted));
          // Memory that is not aligned for words of 16 bytes.
          if (numel > 1) {
            for (auto& term : on_gpu) term = term.slice(0, 1);
            const auto rest = at::empty_like(on_gpu[0]);
            reduce_into(rest, on_gpu, op);
            EXPECT_TRUE(same(rest.cpu(), wanted.slice(0, 1)));
          }
          if (op != ReduceOp::Avg) {
            const auto of_strided = at::empty({numel}, outs[0].options());
            reduce_into(of_strided, strided, op);
            EXPECT_TRUE(same(of_strided.cpu(), wanted));
          }
        }
      }
    }
  }
}

// What a captured collective consists of.
size_t kernels_of(const std::function<void()>& call) {
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  call();  // warms up
  c10::cuda::getCurrentCUDAStream().synchronize();
  at::cuda::CUDAGraph graph(/*keep_graph=*/true);
  graph.capture_begin();
  call();
  graph.capture_end();
  size_t count = 0;
  C10_CUDA_CHECK(cudaGraphGetNodes(graph.raw_cuda_graph(), nullptr, &count));
  return count;
}

TEST(GpuReduce, CollectivesAreAFewKernelsWhateverTheNumberOfRanks) {
  for (const int64_t ranks : {2, 3, 4, 8}) {
    SCOPED_TRACE(ranks);
    const auto world = World::simulate(ranks);
    const auto mesh = init_device_mesh("cuda", {ranks});
    std::vector<at::Tensor> shards;
    for (int64_t r = 0; r < ranks; ++r) {
      shards.push_back(at::randn({16, 24}, at::kCUDA));
    }
    const auto partial = DTensor::from_local(shards, mesh, {Partial()});
    EXPECT_EQ(kernels_of([&] { partial.redistribute({Replicate()}); }), 1);
    // The sum, and every rank's part of it.
    EXPECT_EQ(kernels_of([&] { partial.redistribute({Shard(0)}); }), 2);
    // The whole, and its copies.
    const auto rows = partial.redistribute({Shard(0)});
    EXPECT_EQ(kernels_of([&] { rows.redistribute({Replicate()}); }), 2);
  }
}

// On one rank an op launches, allocates and waits as on a plain tensor.
TEST(GpuSmallOps, DoOnTheDeviceWhatPlainOnesDo) {
  const auto world = World::simulate(1);
  const auto mesh = init_device_mesh("cuda", {1});
  const at::NoGradGuard no_grad;
  const at::Tensor plain = at::ones({4, 4}, at::kCUDA);
  const at::Tensor ours = distribute_tensor(plain, mesh, {Shard(0)});
  using Op = void (*)(const at::Tensor&);
  const std::vector<Op> ops{
      [](const at::Tensor& x) { x.add(x); },
      [](const at::Tensor& x) { at::Tensor(x).add_(x); },
      [](const at::Tensor& x) { x.relu(); },
      [](const at::Tensor& x) { x.mm(x); },
      [](const at::Tensor& x) { x.sum(1); },
      [](const at::Tensor& x) { x.view({16}); }};
  const auto allocations = [](const Op& op, const at::Tensor& x) {
    const auto count = [] {
      return c10::cuda::CUDACachingAllocator::getDeviceStats(0)
          .allocation[0]
          .allocated;
    };
    op(x);
    const auto before = count();
    op(x);
    return count() - before;
  };
  for (const auto op : ops) {
    EXPECT_EQ(kernels_of([&] { op(ours); }), kernels_of([&] { op(plain); }));
    EXPECT_EQ(allocations(op, ours), allocations(op, plain));
  }
}

}  // namespace gpu_reduce_test
}  // namespace tessera::detail
