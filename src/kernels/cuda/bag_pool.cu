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
  if (pool.out_is_float) {
    return launch_by_bag(
        table, bags, pool, pool.out, launch, [](auto step, auto zero) {
          using T = decltype(zero);
          using Out = std::conditional_t<sizeof(T) == 2, float, T>;
          return pool_kernel<step(), T, Out>;
        });
  }
  return launch_by_bag(
      table, bags, pool, pool.out, launch, [](auto step, auto zero) {
        using T = decltype(zero);
        return pool_kernel<step(), T, T>;
      });
}

}  // namespace tessera::detail::cuda
