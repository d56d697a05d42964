// Calls that ATen gets right on one device and not on the shards of some rank:
// the gradient of a kernel longer than its input with one group of several (a
// crash in oneDNN on machines with AVX-512), and products of half types by
// index where one element is left of a row (an internal assert).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace local_calls_test {

TEST(LocalCalls, KernelLongerThanItsInput) {
  torch::manual_seed(1);
  const auto x = torch::randn({8, 4, 12, 8});
  const auto w = torch::randn({4, 1, 65, 1});
  const auto dy = torch::randn({8, 4, 12, 8});
  const auto gradients = [](at::Tensor x, at::Tensor w, const at::Tensor& dy) {
    x = x.detach().requires_grad_();
    w = w.detach().requires_grad_();
    const auto y = torch::conv2d(x, w, {}, 1, {32, 0}, 1, 4);
    return torch::autograd::grad({y}, {x, w}, {dy});
  };
  const auto expected = gradients(x, w, dy);
  ts::testing::for_each_mesh([&](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh) || mesh.ndim() > 1) {
      return;
    }
    for (const int64_t dim : {0, 1}) {
      const auto actual = gradients(
          ts::distribute_tensor(x, mesh, {ts::Shard(dim)}),
          ts::distribute_tensor(w, mesh, {ts::Shard(0)}),
          ts::distribute_tensor(dy, mesh, {ts::Shard(dim)}));
      for (size_t i = 0; i < actual.size(); ++i) {
        EXPECT_TRUE(at::allclose(
            ts::DTensor(actual[i]).full_tensor(), expected[i], 1e-4, 1e-3))
            << "gradient " << i << ", dim " << dim;
      }
    }
  });
}

// A kernel that is not longer stays with its groups.
TEST(LocalCalls, ShorterKernelsMoveNothing) {
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    const auto x = ts::DTensor(ts::ones({8, 4, 12, 8}, mesh, {ts::Shard(1)}))
                       .requires_grad_();
    const auto w = ts::DTensor(ts::ones({4, 1, 5, 1}, mesh, {ts::Shard(0)}))
                       .requires_grad_();
    const ts::CommDebugMode comm;
    const auto y = torch::conv2d(x, w, {}, 1, {2, 0}, 1, 4);
    torch::autograd::grad({y}, {x, w}, {at::ones_like(y)});
    EXPECT_EQ(comm.get_total_counts(), 0);
  });
}

TEST(LocalCalls, ProductsOfHalfTypesByIndex) {
  const auto index = torch::tensor({1, 3, 1, 0, 7});
  ts::testing::for_each_mesh([&](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    for (const auto dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {
      const auto x = torch::arange(32).view({8, 4}).remainder(5).to(dtype);
      const auto source = torch::arange(20).view({5, 4}).remainder(3).to(dtype);
      for (const bool self : {true, false}) {
        const auto expected = x.index_reduce(0, index, source, "prod", self);
        for (const auto& layout : ts::testing::layouts(mesh, 2)) {
          SCOPED_TRACE(ts::to_string(layout));
          const auto actual =
              ts::distribute_tensor(x, mesh, layout)
                  .index_reduce(
                      0,
                      ts::distribute_tensor(index, mesh),
                      ts::distribute_tensor(source, mesh, layout),
                      "prod",
                      self);
          EXPECT_TRUE(ts::DTensor(actual).full_tensor().equal(expected));
        }
      }
    }
  });
}

}  // namespace local_calls_test
