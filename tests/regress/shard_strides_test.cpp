// The strides of a distributed tensor say how its shards lie in memory. Where a
// slice of a transposed tensor went into an op as it was, the result's shards
// followed it but the strides did not: reshape raised "view size is not
// compatible", and is_contiguous() was untrue.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace shard_strides_test {

void on_four_ranks(const std::function<void(const ts::DeviceMesh&)>& body) {
  EXPECT_TRUE(ts::testing::with_mesh({4}, body));
}

void expect_true_strides(const at::Tensor& tensor) {
  for (const auto& shard : ts::DTensor(tensor.detach()).shards()) {
    EXPECT_TRUE(!tensor.is_contiguous() || shard.is_contiguous())
        << shard.sizes() << shard.strides();
  }
}

TEST(ShardStrides, OfASliceThatAliases) {
  on_four_ranks([](const ts::DeviceMesh& mesh) {
    const auto x = torch::randn({3, 2, 8});
    const auto y = torch::randn({2, 3, 8});
    const auto a = ts::distribute_tensor(x, mesh).transpose(0, 1);
    const auto b = ts::distribute_tensor(y, mesh, {ts::Shard(2)});
    const auto sum = a + b;
    expect_true_strides(sum);
    const auto flat = sum.reshape({6, 8});
    EXPECT_TRUE(ts::DTensor(flat).full_tensor().equal(
        (x.transpose(0, 1) + y).reshape({6, 8})));
  });
}

// Kernels that keep the order of dimensions in memory, and whose rules say only
// how large the result is.
TEST(ShardStrides, OfResultsThatKeepTheOrderInMemory) {
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> ops = {
      [](const at::Tensor& x) { return x.flip(0); },
      [](const at::Tensor& x) { return x.roll(1, 0); },
      [](const at::Tensor& x) { return x.relu(); },
      [](const at::Tensor& x) { return x.clone(); },
      [](const at::Tensor& x) { return at::zeros_like(x); },
      [](const at::Tensor& x) { return x.cumsum(0); },
      [](const at::Tensor& x) { return x.softmax(1); },
      [](const at::Tensor& x) { return x.where(x > 0, x * 2); },
      [](const at::Tensor& x) {
        return at::clamp(x, at::zeros_like(x), at::ones_like(x));
      },
      [](const at::Tensor& x) { return x.to(at::kDouble); },
      [](const at::Tensor& x) {
        return x.index_select(
            0, x.select(0, 0).select(0, 0).mul(0).to(at::kLong).view({-1}));
      },
      [](const at::Tensor& x) { return x.tril(); },
  };
  on_four_ranks([&](const ts::DeviceMesh& mesh) {
    const auto plain = torch::randn({4, 8, 4});
    for (size_t i = 0; i < ops.size(); ++i) {
      for (const auto& layout :
           {ts::Placement(ts::Replicate()),
            ts::Placement(ts::Shard(0)),
            ts::Placement(ts::Shard(1))}) {
        SCOPED_TRACE("op " + std::to_string(i) + " of " + layout.str());
        const auto x =
            ts::distribute_tensor(plain, mesh, {layout}).transpose(0, 1);
        const auto result = ops[i](x);
        expect_true_strides(result);
        EXPECT_TRUE(ts::DTensor(result.reshape({-1}))
                        .full_tensor()
                        .equal(ops[i](plain.transpose(0, 1)).reshape({-1})));
      }
    }
  });
}

}  // namespace shard_strides_test
