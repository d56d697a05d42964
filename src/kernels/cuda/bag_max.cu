// Maxima of bags: a group of lanes takes a bag.
#include <cmath>

#include "kernels/cuda/bag.h"
#include "kernels/cuda/bag_bounds.cuh"
#include "kernels/cuda/lanes.cuh"

namespace tessera::detail::cuda {

namespace {

constexpr int kRows = 4;

template <int kStep, typename T>
__global__ void __launch_bounds__(kThreads) max_kernel(
    BagTable table,
    Bags bags,
    bool zero_if_empty,
    T* values,
    int32_t* winners,
    Lanes lanes,
    Report report) {
  using S = Sum<T>;
  const int64_t bag = group_index(lanes);
  const int64_t column = column_of<kStep>(lanes);
  if (bag >= bags.count) {
    return;
  }
  const BagRange range = bag_range(bags, bag, report);
  const T* const data = static_cast<const T*>(table.data) + column;
  const bool inside = column < table.width;
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
  for (int64_t e = range.begin; e < range.end; e += kRows) {
    int64_t rows[kRows];
    bool first[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      rows[r] = -1;
      first[r] = false;
      if (e + r < range.end) {
        const int64_t index = bags.indices[e + r];
        const int64_t row =
            row_of(table.part, index, e + r, report, BadInput::kBagIndex);
        if (index != bags.padding) {
          first[r] = leads;
          leads = false;
          rows[r] = inside ? row : -1;
        }
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
        S terms[kStep];
        widen(raw[r], terms);
#pragma unroll
        for (int k = 0; k < kStep; ++k) {
          // The first entry held here takes the place even of minus infinity;
          // a NaN only if it opens the whole bag.
          const S v = terms[k];
          if (v > best[k] || first[r] || (!opened && v == v)) {
            best[k] = v;
            who[k] = static_cast<int32_t>(e + r);
          }
        }
        opened = true;
      }
    }
  }
  if (!inside) {
    return;
  }
  if (!opened && zero_if_empty) {
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
      best[k] = 0;
    }
  }
  store<kStep>(values + bag * table.width + column, best);
  int32_t* const out = winners + bag * table.width + column;
#pragma unroll
  for (int k = 0; k < kStep; ++k) {
    out[k] = who[k];
  }
}

template <int kStep, typename T>
cudaError_t launch(
    const BagTable& table,
    const Bags& bags,
    bool zero_if_empty,
    void* values,
    int32_t* winners,
    const Report& report,
    cudaStream_t stream) {
  const Lanes lanes = lanes_for(table.width, kStep);
  max_kernel<kStep, T><<<grid_for(bags.count, lanes), kThreads, 0, stream>>>(
      table,
      bags,
      zero_if_empty,
      static_cast<T*>(values),
      winners,
      lanes,
      report);
  return cudaGetLastError();
}

}  // namespace

cudaError_t max_bags(
    const BagTable& table,
    const Bags& bags,
    bool zero_if_empty,
    void* values,
    int32_t* winners,
    const Report& report,
    cudaStream_t stream) {
  if (bags.count == 0) {
    return cudaSuccess;
  }
  return with_scalar(table.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool words = allows_words<T>(table.data, table.width, table.stride) &&
                       allows_words<T>(values, table.width, table.width);
    const auto f = words ? launch<16 / sizeof(T), T> : launch<1, T>;
    return f(table, bags, zero_if_empty, values, winners, report, stream);
  });
}

}  // namespace tessera::detail::cuda
