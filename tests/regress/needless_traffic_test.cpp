// Calls that used to send what they need not: sums that were reduced to add a
// replicated tensor, views of a dimension of size 1, as_strided that changes
// nothing, gradients of slices and of summed losses. What has to be reduced
// first is here too: there a pending result would be another number.
#include <ATen/ScalarOps.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tessera/debug.h"
#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace needless_traffic_test {

using ts::ReduceOp;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A pending reduction of the terms of each rank of a 1-d mesh.
ts::DTensor pending(
    const ts::DeviceMesh& mesh,
    const std::vector<at::Tensor>& terms,
    ReduceOp op) {
  std::vector<at::Tensor> local;
  for (const int64_t position : mesh.local_positions()) {
    local.push_back(terms.at(position));
  }
  return ts::DTensor::from_local(local, mesh, {ts::Partial(op)});
}

at::Tensor reduced(const std::vector<at::Tensor>& terms, ReduceOp op) {
  const auto all = torch::stack(terms);
  switch (op) {
    case ReduceOp::Avg:
      return all.mean(0);
    case ReduceOp::Max:
      return all.amax(0);
    case ReduceOp::Min:
      return all.amin(0);
    default:
      return all.sum(0).to(all.scalar_type());
  }
}

std::vector<at::Tensor> four_terms(at::ScalarType dtype) {
  const auto base = torch::arange(12, at::kDouble).view({3, 4});
  return {
      (base * 3 - 7).to(dtype),
      (5 - base).to(dtype),
      (base - 20).to(dtype),
      (base * -2).to(dtype)};
}

ts::DTensor replicated(const ts::DeviceMesh& mesh, const at::Tensor& value) {
  return ts::distribute_tensor(value, mesh, {ts::Replicate()});
}

void expect_value(const at::Tensor& found, const at::Tensor& expected) {
  const auto whole = ts::DTensor(found).full_tensor();
  EXPECT_EQ(whole.scalar_type(), expected.scalar_type());
  EXPECT_EQ(whole.sizes(), expected.sizes());
  EXPECT_TRUE(torch::allclose(whole, expected, 1e-6, 1e-6, /*equal_nan=*/true))
      << whole << "\nexpected\n"
      << expected;
}

// Calls `op` on a pending and on a replicated tensor. The result is that of
// plain tensors; it is pending, unless `reduces`, and nothing was sent.
void expect_pending(
    const std::vector<at::Tensor>& terms,
    ReduceOp kind,
    const at::Tensor& other,
    const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& op,
    bool reduces = false) {
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    const auto p = pending(mesh, terms, kind);
    const auto r = replicated(mesh, other);
    const ts::CommDebugMode comm;
    const ts::DTensor result(op(p, r));
    EXPECT_EQ(comm.get_total_counts(), reduces ? 1 : 0);
    EXPECT_EQ(result.placements()[0].is_partial(), !reduces);
    expect_value(result, op(reduced(terms, kind), other));
  });
}

using T = const at::Tensor&;

TEST(NeedlessTraffic, OneRankAddsAReplicatedTensor) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kLong}) {
    SCOPED_TRACE(dtype);
    const auto terms = four_terms(dtype);
    const auto other = torch::arange(12).view({3, 4}).to(dtype) * 11;
    const auto expect = [&](const auto& op) {
      expect_pending(terms, ReduceOp::Sum, other, op);
    };
    expect([](T p, T r) { return p + r; });
    expect([](T p, T r) { return r + p; });
    expect([](T p, T r) { return p - r; });
    expect([](T p, T r) { return r - p; });
    expect([](T p, T r) { return at::add(p, r, 3); });
    expect([](T p, T r) { return at::sub(r, p, 3); });
    if (at::isFloatingType(dtype)) {
      expect([](T p, T r) { return at::where(r > 40, p, r); });
    }
    expect([](T p, T r) { return at::cat({p, p, r}).narrow(1, 0, 2); });
    expect([](T p, T r) { return p + r.select(0, 1); });
  }
}

// A number does not promote as a tensor would, on whichever rank.
TEST(NeedlessTraffic, OneRankAddsANumber) {
  const auto terms = four_terms(at::kFloat);
  const auto expect = [&](const auto& op) {
    expect_pending(terms, ReduceOp::Sum, torch::zeros({3, 4}), op);
  };
  // As Python calls it.
  const auto number = &at::native::wrapped_scalar_tensor;
  expect([=](T p, T) { return at::add(p, number(2.5, at::kCPU)); });
  expect([=](T p, T) { return at::sub(p, number(kInf, at::kCPU)); });
  expect([=](T p, T) {
    return at::add(p, number(c10::complex<double>(1, 2), at::kCPU));
  });
}

TEST(NeedlessTraffic, EveryRankAddsToAnAverage) {
  const auto terms = four_terms(at::kDouble);
  const auto other = torch::arange(12, at::kDouble).view({3, 4});
  const auto expect = [&](ReduceOp kind, const auto& op) {
    expect_pending(terms, kind, other, op);
  };
  expect(ReduceOp::Avg, [](T p, T r) { return p + r; });
  expect(ReduceOp::Avg, [](T p, T r) { return r - p; });
  expect(ReduceOp::Max, [](T p, T r) { return at::maximum(p, r); });
  expect(ReduceOp::Min, [](T p, T r) { return at::minimum(r, p); });
}

TEST(NeedlessTraffic, NumbersThatAreNotFinite) {
  const auto value = [](std::vector<double> v) {
    return torch::tensor(v, at::kDouble);
  };
  const std::vector<at::Tensor> terms{
      value({1, kInf, -kInf, kNaN, 2, -kInf}),
      value({2, 3, 4, 5, 6, 7}),
      value({3, 3, 3, 3, 3, 3}),
      value({4, 1, 1, 1, -kInf, 1})};
  const auto other = value({kInf, -kInf, -kInf, 1, kNaN, kInf});
  for (const auto kind : {ReduceOp::Sum, ReduceOp::Avg}) {
    expect_pending(terms, kind, other, [](T p, T r) { return p + r; });
    expect_pending(terms, kind, other, [](T p, T r) { return r - p; });
  }
  expect_pending(
      terms, ReduceOp::Max, other, [](T p, T r) { return at::maximum(p, r); });
  // The largest of -inf + inf and 7 + inf is not a number.
  expect_pending(
      terms, ReduceOp::Max, other, [](T p, T r) { return p + r; }, true);
}

// 1 / 0 is infinite, and 3 / 0 - 2 / 0 is not a number.
TEST(NeedlessTraffic, DividingByATensorReducesFirst) {
  const auto terms = four_terms(at::kDouble);
  for (const auto kind : {ReduceOp::Sum, ReduceOp::Avg}) {
    expect_pending(
        terms,
        kind,
        torch::arange(12, at::kDouble).view({3, 4}),  // some are 0
        [](T p, T r) { return p / r; },
        /*reduces=*/true);
  }
}

// A term of 60000 and 60000 more are infinite in half, and each rank would
// round what it adds.
TEST(NeedlessTraffic, HalfKindsReduceFirst) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const auto value = [&](double v) { return torch::full({8}, v, dtype); };
    expect_pending(
        {value(60000), value(-60000), value(3), value(4)},
        ReduceOp::Sum,
        value(60000),
        [](T p, T r) { return p + r; },
        /*reduces=*/true);
  }
}

// More would be left to reduce than came.
TEST(NeedlessTraffic, ASumThatIsBroadcastReducesFirst) {
  expect_pending(
      four_terms(at::kFloat),
      ReduceOp::Sum,
      torch::ones({7, 3, 4}),
      [](T p, T r) { return p + r; },
      /*reduces=*/true);
}

TEST(NeedlessTraffic, TheNegativeOfAMaximumIsPendingAsAMinimum) {
  const auto other = torch::zeros({3, 4});
  for (const auto kind : {ReduceOp::Max, ReduceOp::Min}) {
    const auto terms = four_terms(at::kFloat);
    expect_pending(terms, kind, other, [](T p, T) { return -p; });
    expect_pending(terms, kind, other, [](T p, T) { return at::relu(p); });
    expect_pending(
        terms, kind, other, [](T p, T) { return at::floor(p * 0.3); }, true);
  }
  // -(-128) is -128 in 8 bits.
  const auto byte = [](int64_t v) { return torch::full({2}, v, at::kChar); };
  expect_pending(
      {byte(-128), byte(5), byte(-3), byte(4)},
      ReduceOp::Max,
      other,
      [](T p, T) { return -p; },
      /*reduces=*/true);
}

TEST(NeedlessTraffic, ViewsOfADimensionOfSizeOne) {
  struct Case {
    std::vector<int64_t> from;
    int64_t dim;
    std::vector<int64_t> to;
  };
  const std::vector<Case> cases{
      {{1, 8}, 0, {1, 2, 4}},
      {{1, 8}, 0, {8, 1}},
      {{8, 1}, 1, {2, 4, 1}},
      {{4, 1, 8}, 1, {2, 2, 1, 8}},
      {{4, 1, 8}, 1, {1, 32}},
      {{1, 1, 8}, 1, {1, 8}}};
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    for (const auto& [from, dim, to] : cases) {
      SCOPED_TRACE(at::IntArrayRef(to));
      const auto value =
          torch::arange(c10::multiply_integers(from), at::kDouble).view(from);
      const auto x = ts::distribute_tensor(value, mesh, {ts::Shard(dim)});
      ts::CommDebugMode comm;
      const auto y = x.view(to);
      EXPECT_EQ(comm.get_total_counts(), 0);
      expect_value(y, value.view(to));
      // A view, not a copy.
      y.mul_(2);
      expect_value(x, value * 2);
    }
    // No dimension of the result is one rank's.
    const auto x = ts::distribute_tensor(
        torch::arange(8, at::kDouble).view({1, 8}), mesh, {ts::Shard(0)});
    expect_value(x.view({8}), torch::arange(8, at::kDouble));
  });
}

TEST(NeedlessTraffic, AsStridedThatChangesNothing) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = torch::arange(32, at::kDouble).view({8, 4});
    for (const int64_t dim : {0, 1}) {
      for (const auto offset : {std::optional<int64_t>(), {0}}) {
        const ts::DTensor x(ts::distribute_tensor(value, mesh, {ts::Shard(dim)})
                                .requires_grad_());
        const auto grad =
            ts::distribute_tensor(value + 1, mesh, {ts::Shard(dim)});
        const ts::CommDebugMode comm;
        const auto y = x.as_strided({8, 4}, {4, 1}, offset);
        y.backward(grad);
        EXPECT_EQ(comm.get_total_counts(), 0);
        EXPECT_TRUE(y.is_view());
        expect_value(y, value);
        expect_value(x.grad(), value + 1);
        const torch::NoGradGuard no_grad;
        y.mul_(2);
        expect_value(x, value * 2);
      }
    }
    // Of a part of a memory, and one that does change something.
    const auto x = ts::distribute_tensor(value, mesh, {ts::Shard(1)});
    const auto part = x.slice(0, 2, 6);
    expect_value(part.as_strided({4, 4}, {4, 1}), value.slice(0, 2, 6));
    expect_value(x.as_strided({4, 8}, {8, 1}), value.view({4, 8}));
    EXPECT_THROW(part.as_strided({4, 4}, {4, 1}, 0), c10::NotImplementedError);
  });
}

TEST(NeedlessTraffic, ASliceAndItsGradientSendOnceEach) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = torch::arange(128, at::kDouble).view({8, 16});
    const ts::DTensor x(
        ts::distribute_tensor(value, mesh, {ts::Shard(1)}).requires_grad_());
    const auto grad =
        ts::distribute_tensor(value.slice(1, 0, 8), mesh, {ts::Shard(1)});
    ts::CommDebugMode comm;
    const auto y = x.slice(1, 8);
    ts::DTensor(y.detach()).shards();
    EXPECT_EQ(comm.get_total_counts(), 1);
    comm.reset();
    y.backward(grad);
    EXPECT_EQ(comm.get_total_counts(), 1);
    EXPECT_EQ(ts::DTensor(x.grad()).placements()[0], ts::Shard(1));
  });
}

// Whichever way the gradient takes: the last tensor is too large to gather it.
TEST(NeedlessTraffic, GradientsOfSlices) {
  const std::vector<std::vector<int64_t>> all_sizes{{9, 7}, {8, 8}, {6, 9000}};
  const auto gradient = [](const at::Tensor& x,
                           const at::Tensor& incoming,
                           int64_t dim,
                           int64_t start,
                           int64_t step) {
    const auto y = x.slice(dim, start, x.size(dim), step);
    return torch::autograd::grad({y}, {x}, {incoming})[0];
  };
  ts::testing::for_each_mesh([&](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    for (const auto& sizes : all_sizes) {
      const auto value =
          torch::arange(c10::multiply_integers(sizes), at::kDouble).view(sizes);
      for (const int64_t dim : {0, 1}) {
        for (const auto& [start, step] :
             {std::pair<int64_t, int64_t>{1, 1}, {0, 2}}) {
          SCOPED_TRACE(ts::to_string({ts::Shard(dim)}));
          const auto part = value.slice(dim, start, sizes[dim], step);
          const auto expected =
              gradient(value.detach().requires_grad_(), part, dim, start, step);
          for (const ts::Placement& placement :
               {ts::Placement(ts::Replicate()),
                ts::Placement(ts::Shard(0)),
                ts::Placement(ts::Shard(1))}) {
            ts::Placements of_base(mesh.ndim(), ts::Replicate());
            of_base.back() = ts::Shard(dim);
            ts::Placements of_grad(mesh.ndim(), ts::Replicate());
            of_grad.back() = placement;
            const auto found = gradient(
                ts::distribute_tensor(value, mesh, of_base).requires_grad_(),
                ts::distribute_tensor(part.contiguous(), mesh, of_grad),
                dim,
                start,
                step);
            EXPECT_EQ(ts::DTensor(found).placements(), of_base);
            EXPECT_TRUE(ts::DTensor(found).full_tensor().equal(expected));
          }
        }
      }
    }
  });
}

TEST(NeedlessTraffic, TheGradientOfASummedLoss) {
  namespace F = torch::nn::functional;
  const auto gradient = [](const at::Tensor& input, const at::Tensor& target) {
    const auto x = input.requires_grad_();
    auto loss = F::cross_entropy(
        x,
        target,
        F::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(1));
    const ts::CommDebugMode comm;
    loss.backward();
    EXPECT_EQ(comm.get_total_counts(), 0);
    return x.grad();
  };
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    for (const auto& sizes :
         std::vector<std::vector<int64_t>>{{8, 5}, {8, 5, 3, 2}}) {
      const auto input =
          torch::arange(c10::multiply_integers(sizes), at::kDouble)
              .remainder(7)
              .view(sizes);
      auto labels = sizes;
      labels.erase(labels.begin() + 1);
      const auto target = torch::arange(c10::multiply_integers(labels))
                              .remainder(5)
                              .view(labels);
      expect_value(
          gradient(
              ts::distribute_tensor(input, mesh, {ts::Shard(0)}),
              ts::distribute_tensor(target, mesh, {ts::Shard(0)})),
          gradient(input.clone(), target));
    }
  });
}

// The formula saves its input: a sum would be reduced again for the gradient.
TEST(NeedlessTraffic, ASumIsReducedOnceForALayerNorm) {
  const auto terms = four_terms(at::kDouble);
  const auto weight = torch::arange(1, 5, at::kDouble);
  const auto gradient = [&](const at::Tensor& x, const at::Tensor& w) {
    return torch::autograd::grad(
        {at::layer_norm(x, {4}, w).square().sum()}, {x})[0];
  };
  const auto plain = reduced(terms, ReduceOp::Sum).requires_grad_();
  const auto expected = gradient(plain, weight);
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    const at::Tensor x = pending(mesh, terms, ReduceOp::Sum).requires_grad_();
    const auto w = replicated(mesh, weight);
    const ts::CommDebugMode comm;
    const auto found = gradient(x, w);
    const auto counts = comm.get_comm_counts();
    EXPECT_EQ(counts.at("reduce_scatter"), 1);
    EXPECT_EQ(counts.count("all_reduce"), 0);
    expect_value(found, expected);
  });
}

}  // namespace needless_traffic_test
