// Where bags begin and end, checked while they are read.
#pragma once

#include "kernels/cuda/bag.h"

namespace tessera::detail::cuda {

struct BagRange {
  int64_t begin;
  int64_t end;
};

__device__ inline BagRange bag_range(
    const Bags& bags, int64_t bag, const Report& report) {
  const int64_t n = bags.indices.count;
  const int64_t begin = bags.offsets[bag];
  const int64_t end = bag + 1 < bags.offsets.count ? bags.offsets[bag + 1] : n;
  const bool good =
      (bag > 0 || begin == 0) && 0 <= begin && begin <= end && end <= n;
  if (!good) {
    // Before any index: without bounds there are none.
    report_bad(report, bag - bags.count, BadInput::kBagOffsets, begin, n, end);
    return {0, 0};
  }
  return {begin, end};
}

}  // namespace tessera::detail::cuda
