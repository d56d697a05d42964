// Bags at random, tables cut into parts, and what ATen makes of them.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/OpMathType.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/bag/bag.h"
#include "kernels/bag/bag_kernels.h"
#include "on_gpu.h"

namespace tessera::detail {

struct BagCase {
  int64_t rows = 10;
  int64_t width = 8;
  int64_t bags = 5;
  int64_t longest = 6;  // bags have 0 to `longest` entries
  BagMode mode = BagMode::kSum;
  at::ScalarType dtype = at::kFloat;
  at::ScalarType index = at::kLong;
  bool include_last = false;
  bool weighted = false;
  bool padded = false;
  int64_t parts = 3;
  uint64_t seed = 0;
};

struct BagSample {
  at::Tensor table;
  BagIndices input;
  std::vector<int64_t> cuts;  // of the table's rows; parts may be empty

  BagPart part(size_t p) const { return {cuts[p], table.size(0)}; }
  at::Tensor rows(size_t p) const {
    return table.slice(0, cuts[p], cuts[p + 1]);
  }
  size_t parts() const { return cuts.size() - 1; }
};

inline BagSample make_sample(const BagCase& c) {
  std::mt19937_64 random(c.seed);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(c.seed);
  std::vector<int64_t> offsets;
  std::vector<int64_t> indices;
  for (int64_t b = 0; b < c.bags; ++b) {
    offsets.push_back(static_cast<int64_t>(indices.size()));
    // A table without rows has nothing to look up.
    const int64_t length = c.rows == 0 ? 0 : below(c.longest + 1);
    for (int64_t i = 0; i < length; ++i) {
      indices.push_back(below(c.rows));
    }
  }
  const auto n = static_cast<int64_t>(indices.size());
  if (c.include_last) {
    offsets.push_back(n);
  }
  BagSample s;
  // Multiples of 1/4: sums are exact in every dtype, and equal values occur.
  s.table = at::randint(-8, 9, {c.rows, c.width}, generator, at::kFloat)
                .div(4)
                .to(c.dtype);
  s.input.indices = at::tensor(indices, at::kLong).to(c.index);
  s.input.offsets = at::tensor(offsets, at::kLong).to(c.index);
  s.input.include_last_offset = c.include_last;
  if (c.padded && c.rows > 0) {
    s.input.padding_idx = below(c.rows);
  }
  if (c.weighted) {
    s.input.per_sample_weights =
        at::randint(-4, 5, {n}, generator, at::kFloat).div(2).to(c.dtype);
  }
  s.cuts = {0};
  for (int64_t p = 1; p < c.parts; ++p) {
    s.cuts.push_back(below(c.rows + 1));
  }
  s.cuts.push_back(c.rows);
  std::sort(s.cuts.begin(), s.cuts.end());
  return s;
}

// What one device makes of the whole table, in double.
struct BagReference {
  at::Tensor out;
  at::Tensor rows;  // max: the rows that won
  at::Tensor grad;
  at::Tensor weights_grad;
};

inline BagReference reference(
    const BagSample& s, BagMode mode, const at::Tensor& grad) {
  const at::Tensor table =
      s.table.to(at::kDouble).detach().clone().requires_grad_();
  at::Tensor per_sample_weights;
  if (s.input.per_sample_weights) {
    per_sample_weights = s.input.per_sample_weights->to(at::kDouble)
                             .detach()
                             .clone()
                             .requires_grad_();
  }
  const auto padding = s.input.padding_idx < 0
                           ? std::nullopt
                           : std::optional<int64_t>(s.input.padding_idx);
  const auto result = at::embedding_bag(
      table,
      s.input.indices,
      s.input.offsets,
      /*scale_grad_by_freq=*/false,
      static_cast<int64_t>(mode),
      /*sparse=*/false,
      per_sample_weights.defined() ? std::optional(per_sample_weights)
                                   : std::nullopt,
      s.input.include_last_offset,
      padding);
  BagReference r{std::get<0>(result).detach(), std::get<3>(result), {}, {}};
  std::get<0>(result).backward(grad.to(at::kDouble));
  r.grad = table.grad();
  if (per_sample_weights.defined()) {
    r.weights_grad = per_sample_weights.grad();
  }
  return r;
}

// The kernels of the CPU, or what other devices get, on the CPU; or those of a
// GPU.
struct BagCalls {
  const char* name;
  bool fused;
  bool gpu = false;

  template <typename T>
  T given(const T& value) const {
    return gpu ? to_gpu(value) : value;
  }
  at::Tensor taken(const at::Tensor& value) const {
    return gpu ? from_gpu(value) : value;
  }

  at::Tensor pool(const BagSample& s, size_t p, BagMode mode) const {
    const auto acc =
        s.table.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return fused ? taken(embedding_bag_part(
                       given(s.rows(p)), s.part(p), given(s.input), mode, acc))
                 : BagKernels::composed().pool(
                       {s.rows(p), s.part(p), s.input}, mode, acc);
  }
  BagMax max(const BagSample& s, size_t p) const {
    if (!fused) {
      return BagKernels::composed().max(
          {s.rows(p), s.part(p), s.input}, BagEmpty::kLowest);
    }
    const BagMax max =
        embedding_bag_max_part(given(s.rows(p)), s.part(p), given(s.input));
    return {taken(max.values), taken(max.argmax)};
  }
  at::Tensor backward(
      const BagSample& s,
      size_t p,
      const at::Tensor& grad,
      BagMode mode,
      const std::optional<at::Tensor>& argmax,
      bool sparse) const {
    const int64_t rows = s.rows(p).size(0);
    const BagGradient bags{
        given(grad), s.part(p), given(s.input), mode, given(argmax)};
    if (!fused) {
      return BagKernels::composed().backward(bags, rows, sparse);
    }
    const auto f =
        sparse ? embedding_bag_sparse_backward : embedding_bag_dense_backward;
    return taken(f(bags, rows));
  }
  // A part of the table after a step.
  at::Tensor step(
      const BagSample& s,
      size_t p,
      const at::Tensor& grad,
      BagMode mode,
      const std::optional<at::Tensor>& argmax,
      double rate) const {
    const at::Tensor rows = given(s.rows(p)).clone();
    BagGradient bags{
        given(grad), s.part(p), given(s.input), mode, given(argmax)};
    if (auto& scales = bags.input.per_sample_weights) {
      scales = scales->to(grad.scalar_type());
    }
    const auto f = fused ? embedding_bag_step_ : BagKernels::composed().step;
    f(rows, bags, rate);
    return taken(rows);
  }
  at::Tensor weights_backward(
      const BagSample& s, size_t p, const at::Tensor& grad) const {
    return fused
               ? taken(embedding_bag_weights_backward(
                     given(grad), given(s.rows(p)), s.part(p), given(s.input)))
               : BagKernels::composed().weights_backward(
                     grad, {s.rows(p), s.part(p), s.input});
  }
};

inline constexpr BagCalls kFused{"fused", true};
inline constexpr BagCalls kAnyDevice{"any_device", false};
inline constexpr BagCalls kGpu{"gpu", true, true};

inline std::vector<BagCalls> bag_kernels() {
  return has_gpu() ? std::vector{kFused, kAnyDevice, kGpu}
                   : std::vector{kFused, kAnyDevice};
}

inline ::testing::AssertionResult close(
    const at::Tensor& ours, const at::Tensor& expected, at::ScalarType dtype) {
  const double tolerance = dtype == at::kDouble     ? 1e-12
                           : dtype == at::kFloat    ? 1e-5
                           : dtype == at::kBFloat16 ? 1e-2
                                                    : 2e-3;
  if (ours.sizes() != expected.sizes()) {
    return ::testing::AssertionFailure()
           << "sizes " << ours.sizes() << " and " << expected.sizes();
  }
  const at::Tensor a = ours.to(at::kDouble);
  const at::Tensor b = expected.to(at::kDouble);
  if (!at::allclose(a, b, tolerance, tolerance, /*equal_nan=*/true)) {
    return ::testing::AssertionFailure() << a << "\nexpected\n" << b;
  }
  return ::testing::AssertionSuccess();
}

// All that bags can be asked, on parts put together, against one device.
inline void check_bags(const BagCalls& kernels, const BagCase& c) {
  SCOPED_TRACE(
      ::testing::Message() << kernels.name << " mode "
                           << static_cast<int64_t>(c.mode) << " rows " << c.rows
                           << " width " << c.width << " bags " << c.bags
                           << " longest " << c.longest << " " << c.dtype << " "
                           << c.index << " last " << c.include_last
                           << " weighted " << c.weighted << " padded "
                           << c.padded << " parts " << c.parts << " seed "
                           << c.seed);
  const BagSample s = make_sample(c);
  const at::Tensor grad =
      at::randint(-4, 5, {c.bags, c.width}, at::kFloat).div(4).to(c.dtype);
  const BagReference expected = reference(s, c.mode, grad);

  std::optional<at::Tensor> argmax;
  if (c.mode == BagMode::kMax) {
    std::vector<BagMax> parts;
    for (size_t p = 0; p < s.parts(); ++p) {
      parts.push_back(kernels.max(s, p));
      EXPECT_EQ(parts.back().values.scalar_type(), c.dtype);
    }
    const BagMax merged = merge_bag_max(parts);
    EXPECT_TRUE(at::equal(merged.values.to(at::kDouble), expected.out));
    argmax = merged.argmax;
    // ATen says row 0 (or -1) of bags that are empty.
    const at::Tensor won = merged.argmax.ge(0);
    EXPECT_TRUE(at::equal(
        bag_max_rows(merged.argmax, s.input).masked_select(won),
        expected.rows.masked_select(won).to(c.index)));
    const at::Tensor counts = kernels.taken(bag_counts(kernels.given(s.input)));
    EXPECT_TRUE(at::equal(won, counts.gt(0).unsqueeze(1).expand_as(won)));
  } else {
    at::Tensor sum;
    for (size_t p = 0; p < s.parts(); ++p) {
      const at::Tensor share = kernels.pool(s, p, c.mode);
      sum = sum.defined() ? sum.add(share) : share;
    }
    EXPECT_TRUE(close(sum, expected.out, sum.scalar_type()));
  }

  std::vector<at::Tensor> dense;
  std::vector<at::Tensor> sparse;
  for (size_t p = 0; p < s.parts(); ++p) {
    dense.push_back(kernels.backward(s, p, grad, c.mode, argmax, false));
    const at::Tensor touched =
        kernels.backward(s, p, grad, c.mode, argmax, true);
    EXPECT_TRUE(touched.is_coalesced());
    const at::Tensor rows = touched.indices()[0];
    EXPECT_TRUE(rows.diff().gt(0).all().item<bool>());
    sparse.push_back(touched.to_dense());
    EXPECT_EQ(dense.back().scalar_type(), c.dtype);
    EXPECT_EQ(touched.scalar_type(), c.dtype);
  }
  EXPECT_TRUE(close(at::cat(dense), expected.grad, c.dtype));
  EXPECT_TRUE(close(at::cat(sparse), expected.grad, c.dtype));

  const double rate = 0.5;
  const at::Tensor stepped = s.table.to(at::kDouble) - expected.grad * rate;
  for (const auto dtype : {c.dtype, at::toOpMathType(c.dtype)}) {
    std::vector<at::Tensor> after;
    for (size_t p = 0; p < s.parts(); ++p) {
      after.push_back(kernels.step(s, p, grad.to(dtype), c.mode, argmax, rate));
    }
    EXPECT_TRUE(close(at::cat(after), stepped, c.dtype));
  }

  if (c.weighted) {
    at::Tensor sum;
    for (size_t p = 0; p < s.parts(); ++p) {
      const at::Tensor share = kernels.weights_backward(s, p, grad);
      EXPECT_EQ(share.scalar_type(), c.dtype);
      sum = sum.defined() ? sum.add(share) : share;
    }
    EXPECT_TRUE(close(sum, expected.weights_grad, c.dtype));
  }
}

}  // namespace tessera::detail
