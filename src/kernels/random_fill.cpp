#include "kernels/random_fill.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace tessera::detail {

namespace {

// Calls visit(local index, global index) for each element of the region, both
// counted row-major.
template <typename Visit>
void for_each_element(const RandomRegion& region, const Visit& visit) {
  const auto dims = static_cast<int64_t>(region.size());
  int64_t count = 1;
  for (const auto& extent : region) {
    count *= extent.size;
  }
  if (count == 0) {
    return;
  }
  const RandomExtent last =
      dims == 0 ? RandomExtent{0, 1, 1} : region[dims - 1];
  at::parallel_for(
      0,
      count / last.size,
      std::max<int64_t>(1, 4096 / last.size),
      [&](auto from, auto to) {
        for (int64_t r = from; r < to; ++r) {
          int64_t global = last.begin;
          int64_t rest = r;
          int64_t scale = last.whole;
          for (int64_t d = dims - 2; d >= 0; --d) {
            global += (region[d].begin + rest % region[d].size) * scale;
            rest /= region[d].size;
            scale *= region[d].whole;
          }
          for (int64_t i = 0; i < last.size; ++i) {
            visit(r * last.size + i, global + i);
          }
        }
      });
}

}  // namespace

void fill_random_(
    const at::Tensor& shard,
    const RandomDraw& draw,
    RandomStream stream,
    const RandomRegion& region) {
  if (shard.is_cuda() && fill_random_cuda(shard, draw, stream, region)) {
    return;
  }
  const at::Tensor values =
      at::empty(shard.sizes(), at::TensorOptions().dtype(at::kDouble));
  auto* const out = values.mutable_data_ptr<double>();
  for_each_element(region, [&](int64_t local, int64_t global) {
    out[local] = drawn(draw, random_bits(stream, global));
  });
  shard.copy_(values);
}

}  // namespace tessera::detail
