// Maxima of bags: a group of lanes takes a bag.
#include <cmath>

#include "kernels/cuda/bag.h"
#include "kernels/cuda/bag_rows.cuh"

namespace tessera::detail::cuda {

namespace {

template <int kStep, typename T>
__global__ void __launch_bounds__(kThreads) max_kernel(
    BagTable table, Bags bags, BagMaxima maxima, Lanes lanes, Report report) {
  using S = Sum<T>;
  const int64_t bag = group_index(lanes);
  const int64_t column = column_of<kStep>(lanes);
  if (bag >= bags.count) {
    return;
  }
  const BagRange range = bag_range(bags, bag, report);
  const S lowest = static_cast<S>(-INFINITY);
  S best[kStep];
  int32_t who[kStep];
#pragma unroll
  for (int k = 0; k < kStep; ++k) {
    best[k] = lowest;
    who[k] = -1;
  }
  bool leads = true;    // no entry of the bag, here or elsewhere, came before
  bool opened = false;  // an entry came that is held here
  for_each_row<kStep, T>(
      table,
      bags,
      range,
      column,
      report,
      [&](bool pads) {
        const bool first = leads && !pads;
        leads = leads && pads;
        return first;
      },
      [&](int64_t entry, bool first, S(&terms)[kStep]) {
#pragma unroll
        for (int k = 0; k < kStep; ++k) {
          // The first entry held here takes the place even of minus infinity;
          // a NaN only if it opens the whole bag.
          const S v = terms[k];
          if (v > best[k] || first || (!opened && v == v)) {
            best[k] = v;
            who[k] = static_cast<int32_t>(entry);
          }
        }
        opened = true;
      });
  if (column >= table.width) {
    return;
  }
  if (!opened && maxima.zero_if_empty) {
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
      best[k] = 0;
    }
  }
  T* const values = static_cast<T*>(maxima.values);
  store<kStep>(values + bag * table.width + column, best);
  int32_t* const out = maxima.argmax + bag * table.width + column;
#pragma unroll
  for (int k = 0; k < kStep; ++k) {
    out[k] = who[k];
  }
}

}  // namespace

cudaError_t max_bags(
    const BagTable& table,
    const Bags& bags,
    const BagMaxima& maxima,
    const Launch& launch) {
  return launch_by_bag(
      table, bags, maxima, maxima.values, launch, [](auto step, auto zero) {
        return max_kernel<step(), decltype(zero)>;
      });
}

}  // namespace tessera::detail::cuda
