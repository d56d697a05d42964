// The one loop over the rows of a bag.
#pragma once

#include "kernels/cuda/bag.h"
#include "kernels/cuda/bag_bounds.cuh"
#include "kernels/cuda/lanes.cuh"

namespace tessera::detail::cuda {

// Reads this lane's columns of the rows that a bag has here, in the order of
// its entries, several of them in flight at once. For each entry, held here or
// not, calls mark(is it padding) when its index is read, which returns a bool;
// for each that is held, take(entry, that bool, the widened columns). Indices
// are checked. Lanes whose columns are outside the table take nothing.
template <int kStep, typename T, class Mark, class Take>
__device__ inline void for_each_row(
    const BagTable& table,
    const Bags& bags,
    BagRange range,
    int64_t column,
    const Report& report,
    Mark mark,
    Take take) {
  constexpr int kRows = 4;
  const T* const data = static_cast<const T*>(table.data) + column;
  const bool inside = column < table.width;
  for (int64_t e = range.begin; e < range.end; e += kRows) {
    int64_t rows[kRows];
    bool marks[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      rows[r] = -1;
      marks[r] = false;
      if (e + r < range.end) {
        const int64_t index = bags.indices[e + r];
        const int64_t row =
            row_of(table.part, index, e + r, report, BadInput::kBagIndex);
        const bool pads = index == bags.padding;
        marks[r] = mark(pads);
        rows[r] = pads || !inside ? -1 : row;
      }
    }
    Raw<T, kStep> raw[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (rows[r] >= 0) {
        raw[r] = fetch<kStep>(data + rows[r] * table.stride);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (rows[r] >= 0) {
        Sum<T> terms[kStep];
        widen(raw[r], terms);
        take(e + r, marks[r], terms);
      }
    }
  }
}

// Launches kernel(table, bags, job, lanes, report) with a group of lanes for
// each bag. `kernel_for(step, T{})` gives it: each lane takes `step` columns,
// 16 bytes of them where the table and `columns`, as wide, allow it. The
// columns of a row go to as many tiles as they need or, by kOneTile, to one.
template <bool kOneTile = false, class Job, class KernelFor>
cudaError_t launch_by_bag(
    const BagTable& table,
    const Bags& bags,
    const Job& job,
    const void* columns,
    const Launch& launch,
    const KernelFor& kernel_for) {
  if (bags.count == 0) {
    return cudaSuccess;
  }
  const auto run = [&](auto step, auto kernel) {
    Lanes lanes = lanes_for(table.width, step());
    lanes.tiles = kOneTile ? 1 : lanes.tiles;
    kernel<<<grid_for(bags.count, lanes), kThreads, 0, launch.stream>>>(
        table, bags, job, lanes, launch.report);
    return cudaGetLastError();
  };
  return with_scalar(table.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool words = allows_words<T>(table.data, table.width, table.stride) &&
                       allows_words<T>(columns, table.width, table.width);
    const std::integral_constant<int, 16 / sizeof(T)> wide;
    const std::integral_constant<int, 1> single;
    return words ? run(wide, kernel_for(wide, zero))
                 : run(single, kernel_for(single, zero));
  });
}

}  // namespace tessera::detail::cuda
