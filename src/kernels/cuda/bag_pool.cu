// Sums, means and counts of bags: a group of lanes takes a bag.
#include "kernels/cuda/bag.h"
#include "kernels/cuda/bag_rows.cuh"

namespace tessera::detail::cuda {

namespace {

__global__ void counts_kernel(Bags bags, int64_t* counts, Report report) {
  const int64_t bag =
      static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (bag >= bags.count) {
    return;
  }
  const BagRange range = bag_range(bags, bag, report);
  int64_t count = range.end - range.begin;
  if (bags.padding >= 0) {
    for (int64_t e = range.begin; e < range.end; ++e) {
      count -= bags.indices[e] == bags.padding;
    }
  }
  counts[bag] = count;
}

template <int kStep, typename T, typename Out>
__global__ void __launch_bounds__(kThreads) pool_kernel(
    BagTable table, Bags bags, BagPool pool, Lanes lanes, Report report) {
  using S = Sum<T>;
  const int64_t bag = group_index(lanes);
  const int64_t column = column_of<kStep>(lanes);
  if (bag >= bags.count) {
    return;
  }
  const BagRange range = bag_range(bags, bag, report);
  const T* const weights = static_cast<const T*>(pool.weights);
  int64_t padded = 0;
  S sums[kStep] = {};
  for_each_row<kStep, T>(
      table,
      bags,
      range,
      column,
      report,
      [&](bool pads) {
        padded += pads;
        return false;
      },
      [&](int64_t entry, bool, S(&terms)[kStep]) {
        if (weights != nullptr) {
          const S weight = widened(weights[entry]);
#pragma unroll
          for (int k = 0; k < kStep; ++k) {
            terms[k] *= weight;
          }
        }
#pragma unroll
        for (int k = 0; k < kStep; ++k) {
          sums[k] += terms[k];
        }
      });
  if (column >= table.width) {
    return;
  }
  if (pool.mean) {
    const int64_t count = pool.counts != nullptr
                              ? pool.counts[bag]
                              : range.end - range.begin - padded;
    const S divisor = static_cast<S>(count > 0 ? count : 1);
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
      sums[k] /= divisor;
    }
  }
  store<kStep>(static_cast<Out*>(pool.out) + bag * table.width + column, sums);
}

}  // namespace

cudaError_t bag_counts(
    const Bags& bags, int64_t* counts, const Launch& launch) {
  if (bags.count == 0) {
    return cudaSuccess;
  }
  const auto blocks =
      static_cast<unsigned>((bags.count + kThreads - 1) / kThreads);
  counts_kernel<<<blocks, kThreads, 0, launch.stream>>>(
      bags, counts, launch.report);
  return cudaGetLastError();
}

cudaError_t pool_bags(
    const BagTable& table,
    const Bags& bags,
    const BagPool& pool,
    const Launch& launch) {
  if (bags.count == 0) {
    return cudaSuccess;
  }
  const auto run = [&](auto kernel, int step) {
    const Lanes lanes = lanes_for(table.width, step);
    kernel<<<grid_for(bags.count, lanes), kThreads, 0, launch.stream>>>(
        table, bags, pool, lanes, launch.report);
    return cudaGetLastError();
  };
  return with_scalar(table.dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kStep = 16 / sizeof(T);
    const bool words = allows_words<T>(table.data, table.width, table.stride) &&
                       allows_words<T>(pool.out, table.width, table.width);
    if constexpr (sizeof(T) == 2) {
      if (pool.out_is_float) {
        return words ? run(pool_kernel<kStep, T, float>, kStep)
                     : run(pool_kernel<1, T, float>, 1);
      }
    }
    return words ? run(pool_kernel<kStep, T, T>, kStep)
                 : run(pool_kernel<1, T, T>, 1);
  });
}

}  // namespace tessera::detail::cuda
