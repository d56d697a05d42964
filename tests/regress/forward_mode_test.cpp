// Forward-mode differentiation was refused with the advice to write a rule for
// _has_same_storage_numel. Tangents pass through every op, in every layout, and
// over the boundary of plain and distributed tensors; where one cannot, an
// error says so: none is lost.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace forward_mode_test {

using T = const at::Tensor&;

class Level {
 public:
  ~Level() { torch::autograd::ForwardADLevel::release_idx(index_); }
  at::Tensor dual(T value, T tangent) const {
    return at::_make_dual(value, tangent, static_cast<int64_t>(index_));
  }
  at::Tensor tangent(T dual) const {
    return std::get<1>(at::_unpack_dual(dual, static_cast<int64_t>(index_)));
  }

 private:
  uint64_t index_ = torch::autograd::ForwardADLevel::get_next_idx();
};

struct Call {
  const char* name;
  // Of x, 6 x 4, and indices below 4 of the same shape.
  std::function<at::Tensor(T, T)> run;
};

const std::vector<Call>& calls() {
  static const std::vector<Call> all{
      {"elementwise", [](T x, T) { return (x.sin() * x).exp(); }},
      {"matrix", [](T x, T) { return x.t().mm(x); }},
      {"sum", [](T x, T) { return x.square().sum(0); }},
      {"mean, largest", [](T x, T) { return x.mean(1) + x.amax(1); }},
      {"softmax", [](T x, T) { return x.log_softmax(1); }},
      {"in place", [](T x, T) { return x.clone().mul_(x).add_(1); }},
      {"norm", [](T x, T) { return at::layer_norm(x, {4}).square(); }},
      {"row", [](T x, T) { return x.select(0, 4).exp(); }},
      {"slice", [](T x, T) { return x.slice(0, 1, 2) * 3; }},
      {"slice of columns", [](T x, T) { return x.slice(1, 0, 4, 3); }},
      {"view", [](T x, T) { return x.view({3, 8}).t().square(); }},
      {"gather", [](T x, T i) { return x.gather(0, i); }},
      {"index", [](T x, T i) { return x.index({i.select(0, 0)}); }},
      {"index_select", [](T x, T i) { return x.index_select(0, i[1]); }},
      {"embedding", [](T x, T i) { return at::embedding(x, i); }},
      {"cat", [](T x, T) { return torch::cat({x, x * 2}, 1).cumsum(0); }},
      {"inverse", [](T x, T) { return at::linalg_inv(x.t().mm(x)); }},
      {"exponential of a matrix",
       [](T x, T) { return at::linalg_matrix_exp(x.t().mm(x) * 0.1); }},
      {"whole",
       [](T x, T) {
         return ts::is_dtensor(x) ? ts::DTensor(x * 2).full_tensor() : x * 2;
       }},
      {"replicated",
       [](T x, T) {
         const auto y = x.square();
         return ts::is_dtensor(y)
                    ? at::Tensor(ts::DTensor(y).redistribute(ts::Placements(
                          ts::DTensor(y).mesh().ndim(), ts::Replicate())))
                    : y;
       }},
  };
  return all;
}

at::Tensor value(double factor) {
  return torch::arange(24, torch::kDouble)
      .view({6, 4})
      .mul(factor)
      .square()
      .sin();
}

std::string compare(const at::Tensor& actual, const at::Tensor& expected) {
  return ts::testing::difference(
      ts::is_dtensor(actual) ? ts::DTensor(actual).full_tensor() : actual,
      expected);
}

TEST(ForwardMode, TangentsEqualOneDevice) {
  const auto x = value(0.7);
  const auto dx = value(1.3);
  const auto ids = torch::arange(24).view({6, 4}).mul(5).remainder(4);
  ts::testing::for_each_mesh([&](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh) || mesh.ndim() > 2) {
      return;
    }
    const auto layouts = ts::testing::layouts(mesh, 2, ts::ReduceOp::Sum);
    for (size_t l = 0; l < layouts.size(); ++l) {
      for (const auto& call : calls()) {
        SCOPED_TRACE(call.name + (", " + ts::to_string(layouts[l])));
        const Level level;
        const auto expected = call.run(level.dual(x, dx), ids);
        // The tangent in the same layout, or in another.
        for (const size_t t : {l, (l + 1) % layouts.size()}) {
          const auto actual = call.run(
              level.dual(
                  ts::testing::laid_out(x, mesh, layouts[l], 1),
                  ts::testing::laid_out(dx, mesh, layouts[t], 2)),
              ts::distribute_tensor(ids, mesh));
          EXPECT_EQ(compare(actual, expected), "");
          const auto tangent = level.tangent(actual);
          ASSERT_TRUE(tangent.defined());
          EXPECT_EQ(compare(tangent, level.tangent(expected)), "");
        }
      }
    }
  });
}

// Backward and forward at once: the tangent of a gradient.
TEST(ForwardMode, OverBackward) {
  const auto x = value(0.7);
  const auto dx = value(1.3);
  const auto gradient_tangent = [&](const Level& level, T x, T dx) {
    const auto dual = level.dual(x.detach().requires_grad_(), dx);
    const auto loss = dual.select(0, 3).exp().sum() *
                      dual.gather(0, at::zeros_like(x, at::kLong)).sum();
    return level.tangent(
        torch::autograd::grad({loss}, {dual}, {}, true, true)[0]);
  };
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    const Level level;
    const auto expected = gradient_tangent(level, x, dx);
    for (const auto& layout : ts::testing::layouts(mesh, 2)) {
      SCOPED_TRACE(ts::to_string(layout));
      EXPECT_EQ(
          compare(
              gradient_tangent(
                  level,
                  ts::distribute_tensor(x, mesh, layout),
                  ts::distribute_tensor(dx, mesh, layout)),
              expected),
          "");
    }
  });
}

TEST(ForwardMode, OverTheBoundary) {
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    const Level level;
    const auto local = torch::ones({2, 3}) * 2;
    const auto x = ts::DTensor::from_local(
        level.dual(local, local * 5), mesh, {ts::Shard(0)});
    EXPECT_TRUE(level.tangent(x.full_tensor()).equal(torch::full({8, 3}, 10.)));
    const auto cube = ts::DTensor(at::Tensor(x).pow(3));
    for (const auto& shard : cube.shards()) {
      EXPECT_TRUE(level.tangent(shard).equal(torch::full({2, 3}, 120.)));
    }
    // Parts of a maximum have none.
    const auto most = ts::DTensor(at::Tensor(x).amax(0));
    if (most.placements()[0].is_partial()) {
      ts::testing::throws_saying<c10::NotImplementedError>(
          "nothing is pending", [&] { most.shards(); });
    }
    EXPECT_TRUE(level.tangent(most.full_tensor()).defined());
  });
}

TEST(ForwardMode, RefusesWhatHasNoTangent) {
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    const Level level;
    const auto value = torch::ones({8, 4});
    const auto x = ts::distribute_tensor(value, mesh, {ts::Shard(0)});
    for (const auto& call :
         {std::function<void()>([&] { level.dual(x, value); }),
          std::function<void()>([&] { level.dual(value, x); })}) {
      ts::testing::throws_saying<c10::TypeError>(
          "expected a tensor and its tangent to be distributed both", call);
    }
    const auto dual = level.dual(x, ts::ones({8, 4}, mesh, {ts::Shard(0)}));
    const auto ids = ts::distribute_tensor(torch::arange(4), mesh);
    const auto offsets = ts::distribute_tensor(torch::tensor({0, 2}), mesh);
    ts::testing::throws_saying<c10::NotImplementedError>(
        "forward-mode differentiation (make_dual, torch.func.jvp) of this op "
        "is not supported",
        [&] { torch::embedding_bag(dual, ids, offsets); });
  });
}

}  // namespace forward_mode_test
