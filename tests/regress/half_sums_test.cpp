// Sums of half and bfloat16 numbers over a sharded dimension. Every rank's term
// used to be rounded, and to overflow, before the terms were added up.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/oracle.h"
#include "testing/samples.h"
#include "testing/worlds.h"

namespace ts = tessera;
namespace F = torch::nn::functional;
using ts::Shard;

namespace half_sums_test {

using Tensors = std::vector<at::Tensor>;

at::Tensor whole(const at::Tensor& tensor) {
  return ts::is_dtensor(tensor) ? ts::DTensor(tensor).full_tensor() : tensor;
}

// Terms of two ranks that overflow half and cancel, and a small rest that a
// sum in half loses.
at::Tensor cancelling(at::ScalarType dtype) {
  return torch::tensor({6e4, 6e4, -6e4, -6e4, 1., 2., 3., 4.}).to(dtype);
}

// Rows to be summed with columns of ones.
at::Tensor cancelling_rows(at::ScalarType dtype, int64_t count = 3) {
  return cancelling(dtype).expand({count, 8}).contiguous();
}

struct Case {
  std::string name;
  Tensors inputs;
  std::vector<ts::Placement> sharded;
  std::function<at::Tensor(const Tensors&)> value;
};

std::vector<Case> cases(at::ScalarType dtype, int64_t count = 3) {
  const auto x = cancelling(dtype);
  const auto rows = cancelling_rows(dtype, count);
  const auto ones = torch::ones({8}, dtype);
  const auto columns = torch::ones({8, 2}, dtype);
  const auto added = torch::ones({count, 2}, dtype);
  const auto image = rows.view({count, 8, 1, 1});
  return {
      {"sum", {x}, {Shard(0)}, [](const Tensors& in) { return in[0].sum(); }},
      {"sum of rows",
       {rows},
       {Shard(1)},
       [](const Tensors& in) { return in[0].sum(1); }},
      {"nansum",
       {x},
       {Shard(0)},
       [](const Tensors& in) { return in[0].nansum(); }},
      {"mean", {x}, {Shard(0)}, [](const Tensors& in) { return in[0].mean(); }},
      {"sum, then linear ops",
       {x},
       {Shard(0)},
       [](const Tensors& in) { return -(in[0].sum() * 0.5).view({1}) / 4; }},
      {"sum of sums",
       {rows},
       {Shard(1)},
       [](const Tensors& in) { return in[0].sum(1).sum(); }},
      {"sums added up",
       {x, ones},
       {Shard(0), Shard(0)},
       [](const Tensors& in) { return in[0].sum() + in[1].sum(); }},
      {"sum added to in place",
       {x, ones},
       {Shard(0), Shard(0)},
       [](const Tensors& in) {
         auto sum = in[0].sum();
         sum += in[1].sum();
         return sum.mul_(2);
       }},
      {"dot",
       {x, ones},
       {Shard(0), Shard(0)},
       [](const Tensors& in) { return in[0].dot(in[1]); }},
      {"mv",
       {rows, ones},
       {Shard(1), Shard(0)},
       [](const Tensors& in) { return in[0].mv(in[1]); }},
      {"mm",
       {rows, columns},
       {Shard(1), Shard(0)},
       [](const Tensors& in) { return in[0].mm(in[1]); }},
      {"addmm",
       {added, rows, columns},
       {ts::Replicate(), Shard(1), Shard(0)},
       [](const Tensors& in) { return in[0].addmm(in[1], in[2]); }},
      {"bmm",
       {rows.unsqueeze(0), columns.unsqueeze(0)},
       {Shard(2), Shard(1)},
       [](const Tensors& in) { return in[0].bmm(in[1]); }},
      {"einsum",
       {rows, columns},
       {Shard(1), Shard(0)},
       [](const Tensors& in) { return at::einsum("ij,jk->ik", in); }},
      {"linear",
       {rows, columns.t().contiguous(), torch::ones({2}, dtype)},
       {Shard(1), Shard(1), ts::Replicate()},
       [](const Tensors& in) { return F::linear(in[0], in[1], in[2]); }},
      {"convolution",
       {image, torch::ones({2, 8, 1, 1}, dtype)},
       {Shard(1), Shard(1)},
       [](const Tensors& in) { return at::conv2d(in[0], in[1]); }},
  };
}

TEST(HalfSums, EqualOneDevice) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    ts::testing::for_each_mesh([&](const ts::DeviceMesh& mesh) {
      for (const auto& [name, inputs, sharded, value] : cases(dtype)) {
        SCOPED_TRACE(name + " of " + toString(dtype));
        Tensors distributed;
        for (size_t i = 0; i < inputs.size(); ++i) {
          const ts::Placements placements(mesh.ndim(), sharded[i]);
          distributed.push_back(
              ts::distribute_tensor(inputs[i], mesh, placements));
        }
        const auto actual = value(distributed);
        const auto expected = value(inputs);
        EXPECT_EQ(actual.scalar_type(), dtype);
        const auto given = whole(actual);
        if (ts::testing::outside(mesh)) {
          continue;
        }
        EXPECT_EQ(given.scalar_type(), dtype);
        EXPECT_TRUE(given.equal(expected)) << given << expected;
      }
    });
  }
}

// A gradient that every rank has a term of: of a replicated weight, where the
// batch is sharded.
TEST(HalfSums, OfGradientsEqualOneDevice) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    ts::testing::for_each_mesh([&](const ts::DeviceMesh& mesh) {
      const auto batch = cancelling_rows(dtype).t().contiguous();
      const auto weight = torch::ones({2, 3}, dtype);
      const auto loss = [](const at::Tensor& x, const at::Tensor& w) {
        return F::linear(x, w).sum();
      };
      const auto plain = weight.clone().requires_grad_();
      loss(batch, plain).backward();

      const ts::Placements by_row(mesh.ndim(), Shard(0));
      const ts::Placements everywhere(mesh.ndim(), ts::Replicate());
      const auto x = ts::distribute_tensor(batch, mesh, by_row);
      auto w = ts::distribute_tensor(weight, mesh, everywhere);
      w.requires_grad_();
      loss(x, w).backward();
      const auto grad = whole(w.grad());
      if (!ts::testing::outside(mesh)) {
        EXPECT_TRUE(grad.equal(plain.grad())) << grad << plain.grad();
      }
    });
  }
}

// What a program sees of a pending half sum is half.
TEST(HalfSums, PendingOnesAreHalf) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto x =
        ts::distribute_tensor(cancelling(at::kHalf), mesh, {Shard(0)});
    const ts::DTensor sum(x.sum());
    EXPECT_EQ(sum.placements()[0], ts::Partial());
    EXPECT_EQ(sum.scalar_type(), at::kHalf);
    for (const auto& term : sum.shards()) {
      EXPECT_EQ(term.scalar_type(), at::kHalf);
    }
    EXPECT_EQ(at::zeros_like(sum).scalar_type(), at::kHalf);
    const ts::DTensor zeros(at::zeros_like(sum));
    EXPECT_EQ(zeros.shards()[0].scalar_type(), at::kHalf);
    const ts::DTensor reduced = sum.redistribute({ts::Replicate()});
    EXPECT_EQ(reduced.shards()[0].scalar_type(), at::kHalf);
    EXPECT_EQ(reduced.item<double>(), 10);
  });
}

int float_products = 0;

at::Tensor float_product(
    const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  ++float_products;
  return a.to(dtype).matmul(b.to(dtype));
}

// Where the device has products of half matrices in float, as GPUs do, the
// matrices are not converted.
TEST(HalfSums, OfProductsAreTakenByTheDevice) {
  torch::Library library(
      torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  for (const char* name : {"mm.dtype", "bmm.dtype"}) {
    library.impl(name, &float_product);
  }
  ts::testing::with_mesh({2}, [](const ts::DeviceMesh& mesh) {
    // Of a size for which no other test has made a plan.
    for (const auto& [name, inputs, sharded, value] : cases(at::kHalf, 5)) {
      if (name != "mm" && name != "addmm" && name != "bmm") {
        continue;
      }
      Tensors distributed;
      for (size_t i = 0; i < inputs.size(); ++i) {
        distributed.push_back(
            ts::distribute_tensor(inputs[i], mesh, {sharded[i]}));
      }
      const int before = float_products;
      const auto product = whole(value(distributed));
      if (!ts::testing::outside(mesh)) {
        EXPECT_TRUE(product.equal(value(inputs))) << name;
        EXPECT_GT(float_products, before) << name;
      }
    }
  });
}

// On a mesh of one rank nothing is pending, and nothing is converted.
TEST(HalfSums, OfOneRankStayHalf) {
  ts::testing::with_mesh({1}, [](const ts::DeviceMesh& mesh) {
    const auto x =
        ts::distribute_tensor(cancelling(at::kHalf), mesh, {Shard(0)});
    EXPECT_EQ(ts::DTensor(x.sum()).spec()->shard_dtype, at::kHalf);
  });
}

// Ops of which ATen has no half kernel on some shards, or whose half kernel is
// not the float one with its result rounded.
bool differs_in_half(const std::string& op) {
  for (const char* name :
       {"aten::_native_batch_norm_legit",
        "aten::complex",
        "aten::grid_sampler",
        "aten::index_reduce",
        "aten::view_as_complex"}) {
    if (op.find(name) == 0) {
      return true;
    }
  }
  return false;
}

// Every op, in both dtypes.
TEST(HalfSums, SamplesEqualOneDevice) {
  const size_t limit = ts::testing::over_processes() ? 2 : 16;
  size_t tried = 0;
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{3}, {2, 2}}) {
      ts::testing::with_mesh(shape, [&](const ts::DeviceMesh& mesh) {
        for (const auto& sample : ts::testing::all_samples()) {
          if (differs_in_half(sample.op)) {
            continue;
          }
          std::optional<ts::testing::Oracle> oracle;
          try {
            oracle.emplace(sample.as(dtype));
          } catch (const c10::Error&) {
            continue;  // no kernel for the dtype
          }
          for (const auto& layouts : ts::testing::layouts_to_try(
                   oracle->tensors(), mesh, limit, ++tried)) {
            const auto verdict = oracle->check(mesh, layouts);
            EXPECT_EQ(verdict.failure, "");
          }
        }
      });
    }
  }
  EXPECT_GT(tried, 1000);
}

}  // namespace half_sums_test
