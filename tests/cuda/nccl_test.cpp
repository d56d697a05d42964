// Collectives over NCCL in a group of one rank: all that one GPU allows. What
// several ranks do is tested over Gloo (tests/process/device_group_test.cpp).
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/async_errors.h"
#include "comm/process/device_group.h"
#include "comm/process/nccl.h"

namespace tessera::detail {
namespace nccl_test {

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    const c10::Device device(c10::kCUDA, 0);
    ASSERT_NE(nccl_device_name(device), "") << "built without NCCL";
    group_ = std::make_unique<DeviceGroup>(
        std::vector<int64_t>{0},
        0,
        make_nccl(c10::make_intrusive<c10d::HashStore>(), {0}, 0, device));
  }

  static Call call(CollectiveKind kind) {
    return {kind, nullptr, -1, std::chrono::milliseconds(30'000)};
  }

  // All collectives on one shard, each of which gives it back.
  std::vector<at::Tensor> all_of(const at::Tensor& x, int64_t dim) {
    const Parts whole{x.size(dim)};
    return {
        group_->all_reduce(call(CollectiveKind::AllReduce), x, ReduceOp::Sum),
        group_->all_gather(call(CollectiveKind::AllGather), x, dim, whole),
        group_->reduce_scatter(
            call(CollectiveKind::ReduceScatter), x, dim, whole, ReduceOp::Sum),
        group_->all_to_all(
            call(CollectiveKind::AllToAll),
            x,
            dim,
            whole,
            1 - dim,
            {x.size(1 - dim)}),
        group_->broadcast(call(CollectiveKind::Broadcast), x),
        group_->scatter(call(CollectiveKind::Scatter), x, dim, whole),
        group_->all_to_all_rows(
            call(CollectiveKind::AllToAllRows), x, {x.size(0)}, {x.size(0)})};
  }

  std::unique_ptr<DeviceGroup> group_;
};

TEST_F(Nccl, EveryCollectiveOfEveryType) {
  for (const auto type :
       {at::kBool,
        at::kByte,
        at::kShort,
        at::kInt,
        at::kLong,
        at::kHalf,
        at::kBFloat16,
        at::kFloat,
        at::kDouble,
        at::kComplexFloat,
        at::kComplexDouble}) {
    for (const auto& sizes : std::vector<std::vector<int64_t>>{
             {2, 3, 4}, {0, 3, 2}, {2, 300, 400}}) {
      const auto x =
          at::randn(sizes, at::kCUDA).mul(50).to(type).transpose(0, 1);
      for (const auto& result : all_of(x, 1)) {
        EXPECT_TRUE(result.is_contiguous());
        EXPECT_TRUE(at::equal(result, x)) << type;
      }
    }
  }
  torch::cuda::synchronize();
  raise_async_errors();
}

// On the stream of the caller, behind what it holds, without waiting for it.
TEST_F(Nccl, RunsOnTheCurrentStream) {
  all_of(at::ones({3, 2}, at::kCUDA), 0);  // connects
  torch::cuda::synchronize();
  const auto stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  auto& warnings = c10::cuda::warning_state();
  warnings.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
  auto x = at::ones({1'000, 1'000}, at::kCUDA);
  for (int i = 0; i < 20; ++i) {
    x = x.mul(2);
    x = group_->all_reduce(call(CollectiveKind::AllReduce), x, ReduceOp::Sum);
  }
  warnings.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
  EXPECT_TRUE(at::equal(x, at::full_like(x, 1 << 20)));
}

TEST_F(Nccl, InAGraph) {
  const auto stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  const auto x = at::zeros({700, 30}, at::kCUDA);
  all_of(x, 1);  // connects
  stream.synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const auto results = all_of(x, 1);
  graph.capture_end();
  for (int run = 0; run < 3; ++run) {
    x.normal_();
    graph.replay();
    for (const auto& result : results) {
      EXPECT_TRUE(at::equal(result, x));
    }
  }
}

}  // namespace nccl_test
}  // namespace tessera::detail
