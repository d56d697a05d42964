// What is particular to the kernels of a GPU: the same bits on every run, rows
// that are named very often, tables that are very large, CUDA graphs. That they
// compute what the CPU's do is tests/kernels' to show, on the same cases.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kernels/bag/bag.h"
#include "kernels/device_errors.h"
#include "kernels/gather/gather.h"
#include "kernels/lookup/embedding.h"
#include "kernels/lookup/renorm.h"
#include "kernels/lookup/route.h"

namespace tessera::detail {
namespace gpu_kernels_test {

at::TensorOptions on_gpu(at::ScalarType dtype) {
  return at::TensorOptions(dtype).device(at::kCUDA);
}

constexpr at::ScalarType kTypes[] = {
    at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

// A few rows are named by most entries; `n` of them.
at::Tensor hot_indices(int64_t n, int64_t rows) {
  const at::Tensor cold = at::randint(rows, {n}, on_gpu(at::kLong));
  const at::Tensor hot = at::randint(3, {n}, on_gpu(at::kLong));
  return at::where(at::rand({n}, on_gpu(at::kFloat)).lt(0.7), hot, cold);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a, b);
}

void expect_close(const at::Tensor& ours, const at::Tensor& exact) {
  const double tolerance = ours.scalar_type() == at::kDouble  ? 1e-11
                           : ours.scalar_type() == at::kFloat ? 1e-4
                                                              : 2e-2;
  const at::Tensor wide = ours.to(at::kDouble);
  const double scale = exact.abs().max().item<double>() + 1e-9;
  EXPECT_LT(wide.sub(exact).abs().max().item<double>(), tolerance * scale)
      << ours.scalar_type();
}

TEST(GpuKernels, HotRowsAddUpAlikeOnEveryRun) {
  const int64_t rows = 5'000;
  const int64_t n = 200'003;
  for (const auto dtype : kTypes) {
    for (const int64_t width : {1, 7, 24, 128, 200}) {
      SCOPED_TRACE(width);
      const at::Tensor indices = hot_indices(n, rows);
      const at::Tensor grad =
          at::randn({n, width}, on_gpu(at::kFloat)).to(dtype);
      const auto backward = [&](bool scaled) {
        return lookup_rows_backward(grad, {indices, 0, rows, rows}, 7, scaled);
      };
      const at::Tensor first = backward(false);
      EXPECT_TRUE(same_bits(first, backward(false)));
      at::Tensor exact = at::zeros({rows, width}, on_gpu(at::kDouble));
      exact.index_add_(
          0,
          indices,
          grad.to(at::kDouble).masked_fill(indices.eq(7).unsqueeze(1), 0));
      expect_close(first, exact);
      const at::Tensor counts =
          at::bincount(indices, {}, rows).clamp_min(1).unsqueeze(1);
      expect_close(backward(true), exact.div(counts));
      const at::Tensor sparse =
          lookup_rows_sparse_backward(grad, {indices, 0, rows, rows}, 7);
      EXPECT_TRUE(sparse.is_coalesced());
      EXPECT_TRUE(same_bits(sparse.to_dense(), first));
    }
  }
}

TEST(GpuKernels, BagsAndStepsAreAlikeOnEveryRun) {
  const int64_t rows = 3'000;
  const int64_t bags = 4'000;
  const int64_t n = bags * 20;
  for (const auto dtype : kTypes) {
    const at::Tensor table =
        at::randn({rows, 96}, on_gpu(at::kFloat)).to(dtype);
    const at::Tensor grad = at::randn({bags, 96}, on_gpu(at::kFloat)).to(dtype);
    const BagIndices input{
        hot_indices(n, rows), at::arange(bags, on_gpu(at::kLong)).mul(20)};
    for (const auto mode : {BagMode::kSum, BagMode::kMean, BagMode::kMax}) {
      const auto once = [&] {
        std::vector<at::Tensor> all;
        BagGradient gradient{grad, {0, rows}, input, mode, std::nullopt};
        if (mode == BagMode::kMax) {
          const BagMax max =
              embedding_bag_max_part(table, {0, rows}, input, BagEmpty::kZero);
          all = {max.values, max.argmax};
          gradient.argmax = max.argmax;
        } else {
          all = {embedding_bag_part(table, {0, rows}, input, mode)};
        }
        all.push_back(embedding_bag_dense_backward(gradient, rows));
        all.push_back(embedding_bag_sparse_backward(gradient, rows).to_dense());
        all.push_back(table.clone());
        embedding_bag_step_(all.back(), gradient, 0.25);
        return all;
      };
      const auto first = once();
      const auto second = once();
      for (size_t i = 0; i < first.size(); ++i) {
        EXPECT_TRUE(same_bits(first[i], second[i])) << i;
      }
      EXPECT_TRUE(same_bits(first[first.size() - 3], first[first.size() - 2]));
    }
  }
}

// The digits of the sort follow from the number of rows.
TEST(GpuKernels, SortsByRowsOfAnyNumberOfBits) {
  for (const int64_t rows :
       {int64_t{1},
        int64_t{200},
        int64_t{256},
        int64_t{300},
        int64_t{511},
        int64_t{60'000},
        int64_t{70'000},
        int64_t{200'000},
        int64_t{300'000},
        int64_t{10'000'000},
        int64_t{20'000'000},
        int64_t{134'217'727},
        int64_t{134'217'728},
        int64_t{4'000'000'000}}) {
    for (const int64_t n : {1, 100, 5'000, 300'000}) {
      SCOPED_TRACE(std::to_string(n) + " of " + std::to_string(rows));
      const at::Tensor indices = hot_indices(n, rows).clamp_max_(rows - 1);
      const Route route = route_rows(indices, {0, rows / 3, rows / 2, rows});
      const auto [wanted, place, counts] =
          at::_unique2(indices, /*sorted=*/true, /*return_inverse=*/true);
      EXPECT_TRUE(at::equal(route.wanted, wanted));
      EXPECT_TRUE(at::equal(route.place, place));
      // Entries of one row keep their order: the sums of floats have one too.
      const at::Tensor grad = at::randn({n, 1}, on_gpu(at::kFloat));
      const at::Tensor sums =
          lookup_rows_sparse_backward(grad, {indices, 0, rows, rows}, -1);
      const int64_t found = wanted.size(0);
      EXPECT_TRUE(same_bits(
          sums._values(),
          lookup_rows_backward(grad, {place, 0, found, found}, -1, false)));
    }
  }
}

// Rows beyond 2^31 elements, and strides that are not the width.
TEST(GpuKernels, LargeAndStridedTables) {
  const int64_t rows = 40'000'000;
  const int64_t width = 64;
  const at::Tensor table = at::empty({rows, width}, on_gpu(at::kHalf));
  table.select(1, 0).copy_(at::arange(rows, on_gpu(at::kLong)).remainder(997));
  table.slice(1, 1).zero_();
  const at::Tensor indices = at::tensor(
      {int64_t{0}, rows - 1, rows / 2, int64_t{33'554'432}, int64_t{5}},
      on_gpu(at::kLong));
  const at::Tensor out = lookup_rows(table, indices, 0, rows);
  EXPECT_TRUE(
      at::equal(out.select(1, 0).to(at::kLong), indices.remainder(997)));
  // A part of the columns, at an odd place.
  EXPECT_TRUE(at::equal(
      lookup_rows(table.slice(1, 0, 3), indices, 0, rows), out.slice(1, 0, 3)));
  const at::Tensor grad = at::ones({5, width}, on_gpu(at::kHalf));
  const at::Tensor dense =
      lookup_rows_backward(grad, {indices, 0, rows, rows}, -1, false);
  EXPECT_EQ(dense.select(0, rows - 1).sum().item<double>(), width);
  EXPECT_EQ(dense.select(1, 0).sum(at::kDouble).item<double>(), 5);
  raise_device_errors();
}

TEST(GpuKernels, StridedBags) {
  const at::Tensor wide = at::randn({50, 40}, on_gpu(at::kFloat));
  const at::Tensor table = wide.slice(1, 3, 20);
  const BagIndices input{
      at::randint(50, {60}, on_gpu(at::kInt)),
      at::tensor({0, 10, 10, 33}, on_gpu(at::kInt))};
  EXPECT_TRUE(at::equal(
      embedding_bag_part(table, {0, 50}, input, BagMode::kSum),
      embedding_bag_part(table.contiguous(), {0, 50}, input, BagMode::kSum)));
  const BagGradient gradient{
      at::randn({4, 17}, on_gpu(at::kFloat)),
      {0, 50},
      input,
      BagMode::kSum,
      std::nullopt};
  const at::Tensor plain = table.clone();
  const at::Tensor beside = wide.clone();
  embedding_bag_step_(plain, gradient, 0.5);
  embedding_bag_step_(wide.slice(1, 3, 20), gradient, 0.5);
  EXPECT_TRUE(at::equal(wide.slice(1, 3, 20), plain));
  EXPECT_TRUE(at::equal(wide.slice(1, 0, 3), beside.slice(1, 0, 3)));
  EXPECT_TRUE(at::equal(wide.slice(1, 20), beside.slice(1, 20)));
}

TEST(GpuKernels, Renorm) {
  for (const auto dtype : kTypes) {
    for (const double type : {1.0, 2.0, 3.0}) {
      const at::Tensor table = at::randn({20, 33}).to(dtype);
      const at::Tensor wanted = at::tensor({17, 3, 5, 17, 3, 17}, at::kLong);
      at::Tensor exact = table.to(at::kDouble);
      at::embedding_renorm_(exact, wanted, 1.5, type);
      const at::Tensor ours = table.cuda();
      const at::Tensor indices = wanted.cuda();
      renorm_rows_(ours.slice(0, 0, 10), {indices, 0, 10, 20}, {1.5, type});
      renorm_rows_(ours.slice(0, 10, 20), {indices, 10, 10, 20}, {1.5, type});
      expect_close(ours, exact.cuda());
    }
  }
}

TEST(GpuKernels, ManyOwners) {
  const at::Tensor indices = at::randint(10'000, {3'000}, on_gpu(at::kLong));
  std::vector<int64_t> bounds;
  for (int64_t b = 0; b <= 10'000; b += 10) {
    bounds.push_back(b);
  }
  const Route route = route_rows(indices, bounds);
  const Route expected = route_rows(indices.cpu(), bounds);
  EXPECT_TRUE(at::equal(route.wanted.cpu(), expected.wanted));
  EXPECT_TRUE(at::equal(route.place.cpu(), expected.place));
  EXPECT_EQ(route.counts, expected.counts);
}

// Recorded once and run again on other indices.
TEST(GpuKernels, InAGraph) {
  const int64_t rows = 1'000;
  const at::Tensor table = at::randn({rows, 32}, on_gpu(at::kFloat));
  const at::Tensor indices = at::randint(rows, {512}, on_gpu(at::kLong));
  const at::Tensor offsets = at::arange(64, on_gpu(at::kLong)).mul(8);
  const at::Tensor grad = at::randn({512, 32}, on_gpu(at::kFloat));
  const auto step = [&] {
    const BagIndices input{indices, offsets};
    return std::vector{
        lookup_rows(table, indices, 0, rows),
        lookup_rows_backward(grad, {indices, 0, rows, rows}, -1, false),
        embedding_bag_part(table, {0, rows}, input, BagMode::kMean),
        embedding_bag_dense_backward(
            {grad.slice(0, 0, 64), {0, rows}, input, BagMode::kMean, {}},
            rows)};
  };
  step();
  at::cuda::CUDAGraph graph;
  std::vector<at::Tensor> recorded;
  {
    const auto stream = c10::cuda::getStreamFromPool();
    const c10::cuda::CUDAStreamGuard guard(stream);
    graph.capture_begin();
    recorded = step();
    graph.capture_end();
  }
  for (int run = 0; run < 2; ++run) {
    indices.copy_(at::randint(rows, {512}, on_gpu(at::kLong)));
    graph.replay();
    torch::cuda::synchronize();
    const auto expected = step();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(same_bits(recorded[i], expected[i])) << i;
    }
  }
}

}  // namespace gpu_kernels_test
}  // namespace tessera::detail
