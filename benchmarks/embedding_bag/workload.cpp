#include "embedding_bag/workload.h"

#include <ATen/ATen.h>

#include <array>

namespace tessera::bench {

namespace {

constexpr int64_t kScatter = 7919;  // does not divide the table's size
constexpr double kZipfExponent = 1.05;
// Rows of a column all differ, or programs might choose different maxima: a
// prime, more than there are rows.
constexpr int64_t kValues = 1'048'573;
constexpr int64_t kSpread = 40'503;

}  // namespace

at::Tensor bag_indices(
    const BagSize& size, const std::string& kind, int64_t rank) {
  const int64_t count = size.bags * size.entries;
  const std::array<int64_t, 2> shape{size.bags, size.entries};
  if (kind == "uniform") {
    at::manual_seed(100 + rank);
    return at::randint(size.rows, {count}, at::kLong).view(shape);
  }
  at::manual_seed(200 + rank);
  const auto share =
      at::arange(1, size.rows + 1, at::kDouble).pow(-kZipfExponent).cumsum(0);
  const auto ranks = at::searchsorted(
      share, at::rand({count}, at::kDouble).mul(share[size.rows - 1]));
  return ranks.clamp_max(size.rows - 1)
      .mul(kScatter)
      .remainder(size.rows)
      .view(shape);
}

at::Tensor table_block(
    int64_t first_row, int64_t rows, int64_t first_column, int64_t columns) {
  const auto row = at::arange(first_row, first_row + rows, at::kLong)
                       .mul(kSpread)
                       .remainder(kValues)
                       .to(at::kInt);
  const auto column =
      at::arange(first_column, first_column + columns, at::kInt).mul(kScatter);
  return row.unsqueeze(1)
      .add(column)
      .remainder(kValues)
      .to(at::kFloat)
      .div_(kValues);
}

at::Tensor bag_gradient(const BagSize& size) {
  return at::arange(size.bags, at::kFloat)
      .remainder(7)
      .add(1)
      .div(8)
      .unsqueeze(1)
      .expand({size.bags, size.columns})
      .contiguous();
}

double fingerprint(const at::Tensor& pooled) {
  const auto factors = at::arange(pooled.numel(), at::kDouble).remainder(17);
  return pooled.detach()
      .to(at::kDouble)
      .flatten()
      .mul_(factors)
      .sum()
      .item<double>();
}

}  // namespace tessera::bench
