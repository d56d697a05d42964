// Attention on a GPU in each of its kernels (flash, memory-efficient, cuDNN and
// the one made of other ops), forward and backward, beside the same kernel on
// plain tensors.
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

#include "tessera/tessera.h"

namespace ts = tessera;
using ts::Placement;
using ts::Replicate;
using ts::Shard;

namespace attention_test {

using Shape = std::vector<int64_t>;

enum class Kernel { kFlash, kEfficient, kCudnn, kMath };

// Allows only this kernel.
class Only {
 public:
  explicit Only(Kernel kernel) { allow(kernel, false); }
  ~Only() { allow(Kernel::kFlash, true); }

 private:
  static void allow(Kernel kernel, bool all) {
    auto& context = at::globalContext();
    context.setSDPUseFlash(all || kernel == Kernel::kFlash);
    context.setSDPUseMemEfficient(all || kernel == Kernel::kEfficient);
    context.setSDPUseCuDNN(all || kernel == Kernel::kCudnn);
    context.setSDPUseMath(all || kernel == Kernel::kMath);
  }
};

class Attention : public ::testing::TestWithParam<Shape> {
 protected:
  ts::Placements everywhere(const Placement& p) const {
    return ts::Placements(mesh_.ndim(), p);
  }
  ts::World world_ = ts::World::simulate(c10::multiply_integers(GetParam()));
  ts::DeviceMesh mesh_ = ts::init_device_mesh("cuda", GetParam());
};

INSTANTIATE_TEST_SUITE_P(
    Meshes,
    Attention,
    ::testing::Values(Shape{1}, Shape{2}, Shape{3}, Shape{4}, Shape{2, 2}));

void expect_close(const at::Tensor& ours, const at::Tensor& plain) {
  const auto full = ts::DTensor(ours.detach()).full_tensor();
  EXPECT_EQ(full.scalar_type(), plain.scalar_type());
  EXPECT_TRUE(torch::allclose(
      full.to(torch::kFloat), plain.to(torch::kFloat), 1e-2, 1e-2))
      << (full - plain).abs().max();
}

struct Case {
  Shape query;
  Shape key;
  bool causal;
  bool masked;
  bool transposed;  // laid out as [n, l, h, e], as projections give it
};

TEST_P(Attention, EveryKernelAndLayout) {
  const std::vector<Case> cases{
      {{4, 4, 48, 16}, {4, 4, 48, 16}, false, false, false},
      {{4, 4, 48, 16}, {4, 4, 48, 16}, true, false, true},
      // Batches and heads that do not divide by the ranks.
      {{5, 6, 40, 16}, {5, 6, 24, 16}, false, false, true},
      {{3, 5, 33, 8}, {3, 5, 33, 8}, true, false, false},
      {{4, 4, 40, 16}, {4, 4, 24, 16}, false, true, false}};
  for (const auto kernel :
       {Kernel::kFlash, Kernel::kEfficient, Kernel::kCudnn, Kernel::kMath}) {
    const Only only(kernel);
    for (const auto& c : cases) {
      if (c.masked && kernel == Kernel::kFlash) continue;  // takes no mask
      torch::manual_seed(3);
      const auto made = [&](const Shape& s) {
        auto x = torch::randn(s, torch::kCUDA).to(torch::kHalf);
        if (c.transposed) {
          x = x.transpose(1, 2).contiguous().transpose(1, 2);
        }
        return x;
      };
      const auto q = made(c.query);
      const auto k = made(c.key);
      const auto v = made(c.key);
      const auto grad = made(c.query);
      std::optional<at::Tensor> mask;
      if (c.masked) {
        mask = torch::randn({1, 1, c.query[2], c.key[2]}, torch::kCUDA)
                   .to(torch::kHalf);
      }
      const auto run = [&](const at::Tensor& a,
                           const at::Tensor& b,
                           const at::Tensor& d,
                           const std::optional<at::Tensor>& m) {
        return at::scaled_dot_product_attention(a, b, d, m, 0.0, c.causal);
      };
      const auto leaf = [](const at::Tensor& x) {
        return x.detach().requires_grad_();
      };
      const auto pq = leaf(q);
      const auto pk = leaf(k);
      const auto pv = leaf(v);
      const auto wanted = run(pq, pk, pv, mask);
      wanted.backward(grad);
      struct Layouts {
        Placement query;
        Placement key;
        Placement grad;
      };
      const std::vector<Layouts> all{
          {Replicate(), Replicate(), Replicate()},
          {Shard(0), Shard(0), Shard(0)},
          {Shard(1), Shard(1), Shard(1)},
          {Shard(2), Shard(2), Shard(2)},
          // What the forward pass saved is redistributed in the backward pass.
          {Replicate(), Replicate(), Shard(1)},
          {Shard(0), Replicate(), Shard(1)},
          {Shard(2), Replicate(), Shard(2)},
          {Shard(1), Shard(1), Shard(0)}};
      for (const auto& layout : all) {
        SCOPED_TRACE(
            std::string("kernel ") + std::to_string(static_cast<int>(kernel)) +
            ", " + layout.query.str() + layout.key.str() + layout.grad.str() +
            (c.causal ? ", causal" : "") + (c.masked ? ", masked" : "") +
            ", heads " + std::to_string(c.query[1]));
        const auto placed = [&](const at::Tensor& x,
                                const Placement& p) -> at::Tensor {
          return ts::distribute_tensor(
              x.detach().requires_grad_(x.requires_grad()),
              mesh_,
              everywhere(p));
        };
        const auto dq = placed(pq, layout.query);
        const auto dk = placed(pk, layout.key);
        const auto dv = placed(pv, layout.key);
        std::optional<at::Tensor> dm;
        if (c.masked) {
          dm = placed(*mask, Replicate());
        }
        const auto found = run(dq, dk, dv, dm);
        expect_close(found, wanted);
        found.backward(placed(grad, layout.grad));
        expect_close(dq.grad(), pq.grad());
        expect_close(dk.grad(), pk.grad());
        expect_close(dv.grad(), pv.grad());
      }
    }
  }
}

}  // namespace attention_test
