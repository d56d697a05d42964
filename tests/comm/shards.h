// Shards with values that every rank can compute for every other, so that each
// checks its own results against the plain computation.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "comm/collectives.h"
#include "tessera/shard_math.h"
#include "testing/worlds.h"

namespace tessera::testing {

using detail::Parts;
using detail::Shards;

// Every type that tensors of users have.
inline const std::vector<at::ScalarType>& all_types() {
  static const std::vector<at::ScalarType> types{
      at::kBool,
      at::kByte,
      at::kChar,
      at::kShort,
      at::kInt,
      at::kLong,
      at::kHalf,
      at::kBFloat16,
      at::kFloat,
      at::kDouble,
      at::kComplexFloat,
      at::kComplexDouble};
  return types;
}

// Values from -2 to 2 that differ a lot between seeds; sums and products of a
// few are exact in every type. Laid out in memory backwards, so that a tensor
// of two dimensions and more is not contiguous; complex ones have a pending
// conjugation too.
inline at::Tensor values(
    int64_t seed, at::IntArrayRef sizes, at::ScalarType type) {
  std::vector<int64_t> reversed(sizes.rbegin(), sizes.rend());
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  const auto count = at::arange(numel, at::kLong);
  const auto choice =
      (count * 7 + (count * count).remainder(11) + seed * 5).remainder(4);
  const auto table = at::tensor({1.0, -1.0, 2.0, -2.0}, at::kDouble);
  auto real = table.index_select(0, choice);
  at::Tensor out;
  if (type == at::kBool) {
    out = choice.lt(2);
  } else if (c10::isComplexType(type)) {
    out = at::complex(real, real.roll(1) + 1).to(type);
  } else {
    out = real.to(at::kLong).to(type);
  }
  out = out.view(reversed).permute([&] {
    std::vector<int64_t> order(sizes.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<int64_t>(order.size() - 1 - i);
    }
    return order;
  }());
  return c10::isComplexType(type) ? out.conj() : out;
}

// One shard for each position that lives here.
inline Shards make_shards(
    const DeviceMesh& mesh,
    const std::function<at::Tensor(int64_t position)>& make) {
  Shards shards;
  for (const int64_t p : mesh.local_positions()) shards.push_back(make(p));
  return shards;
}

// One list of parts for each position that lives here.
inline std::vector<Parts> make_parts(
    const DeviceMesh& mesh,
    const std::function<Parts(int64_t position)>& make) {
  std::vector<Parts> parts;
  for (const int64_t p : mesh.local_positions()) parts.push_back(make(p));
  return parts;
}

// Checks every result that lives here, bit by bit, and that it is contiguous.
inline void expect_shards(
    const DeviceMesh& mesh,
    const Shards& results,
    const std::function<at::Tensor(int64_t position)>& expected) {
  ASSERT_EQ(results.size(), mesh.local_positions().size());
  for (size_t i = 0; i < results.size(); ++i) {
    const int64_t position = mesh.local_positions()[i];
    const auto wanted = expected(position);
    ASSERT_EQ(results[i].sizes(), wanted.sizes()) << "position " << position;
    ASSERT_EQ(results[i].scalar_type(), wanted.scalar_type());
    EXPECT_TRUE(at::equal(results[i], wanted))
        << "position " << position << " has\n"
        << results[i] << "\ninstead of\n"
        << wanted;
  }
}

// The part of `full` that coordinate `c` holds.
inline at::Tensor part_of(
    const at::Tensor& full, int64_t dim, const Parts& parts, int64_t c) {
  int64_t start = 0;
  for (int64_t i = 0; i < c; ++i) start += parts[i];
  return full.narrow(dim, start, parts[c]);
}

// Ways to cut a dimension among n ranks: evenly, unevenly, with empty parts at
// the end or at the beginning, and nothing at all.
inline std::vector<Parts> cuts(int64_t n) {
  std::vector<Parts> out{
      chunk_sizes(2 * n, n), chunk_sizes(2 * n + 1, n), chunk_sizes(1, n)};
  Parts rising;
  for (int64_t c = 0; c < n; ++c) rising.push_back(c);
  out.push_back(rising);
  out.push_back(Parts(n, 0));
  return out;
}

inline int64_t sum_of(const Parts& parts) {
  int64_t sum = 0;
  for (const int64_t part : parts) sum += part;
  return sum;
}

// The plain reduction, in the widest type.
inline at::Tensor plain_reduction(
    const std::vector<at::Tensor>& terms, ReduceOp op) {
  const auto type = terms[0].scalar_type();
  if (type == at::kBool) {
    const auto stacked = at::stack(terms);
    const bool any = op == ReduceOp::Sum || op == ReduceOp::Max;
    return any ? stacked.any(0) : stacked.all(0);
  }
  const auto wide = c10::isComplexType(type)          ? at::kComplexDouble
                    : c10::isIntegralType(type, true) ? at::kLong
                                                      : at::kDouble;
  std::vector<at::Tensor> widened;
  for (const auto& term : terms) widened.push_back(term.to(wide));
  const auto stacked = at::stack(widened);
  switch (op) {
    case ReduceOp::Sum:
      return stacked.sum(0).to(type);
    case ReduceOp::Avg:
      return stacked.mean(0).to(type);
    case ReduceOp::Product:
      return stacked.prod(0).to(type);
    case ReduceOp::Min:
      return stacked.amin(0).to(type);
    case ReduceOp::Max:
      return stacked.amax(0).to(type);
  }
  return {};
}

// Whether a type can be reduced by `op`.
inline bool reducible(at::ScalarType type, ReduceOp op) {
  if (op == ReduceOp::Avg) return !c10::isIntegralType(type, true);
  if (op == ReduceOp::Min || op == ReduceOp::Max) {
    return !c10::isComplexType(type);
  }
  return true;
}

inline const std::vector<ReduceOp>& all_ops() {
  static const std::vector<ReduceOp> ops{
      ReduceOp::Sum,
      ReduceOp::Avg,
      ReduceOp::Product,
      ReduceOp::Min,
      ReduceOp::Max};
  return ops;
}

}  // namespace tessera::testing
