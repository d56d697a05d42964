// The entries of bags, made ready for sorting, and dot products for each.
#include <algorithm>

#include "kernels/cuda/bag_gradient.h"
#include "kernels/cuda/bag_rows.cuh"

namespace tessera::detail::cuda {

namespace {

__global__ void __launch_bounds__(kThreads) entries_kernel(
    Bags bags, Part part, BagEntryOut entries, Lanes lanes, Report report) {
  uint32_t* const rows = entries.sort.rows[0];
  uint32_t* const places = entries.sort.places[0];
  const int64_t bag = group_index(lanes);
  const int lane = static_cast<int>(threadIdx.x) & (lanes.group - 1);
  int64_t count = 0;
  if (bag < bags.count) {
    const BagRange range = bag_range(bags, bag, report);
    for (int64_t e = range.begin + lane; e < range.end; e += lanes.group) {
      const int64_t index = bags.indices[e];
      const int64_t row = row_of(part, index, e, report, BadInput::kBagIndex);
      const bool pads = index == bags.padding;
      count += !pads;
      rows[e] = static_cast<uint32_t>(row < 0 || pads ? part.rows : row);
      if (entries.bags == nullptr) {
        places[e] = static_cast<uint32_t>(bag);
      } else {
        places[e] = static_cast<uint32_t>(e);
        entries.bags[e] = static_cast<int32_t>(bag);
      }
    }
  }
  if (entries.counts != nullptr) {
    for (int other = lanes.group / 2; other > 0; other /= 2) {
      count += __shfl_xor_sync(0xffffffffu, count, other);
    }
    if (bag < bags.count && lane == 0) {
      entries.counts[bag] = count;
    }
  }
}

// Entries behind the last bag, or of bags with bad offsets.
__global__ void absent_kernel(uint32_t* rows, int64_t n, uint32_t row) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) {
    rows[i] = row;
  }
}

__global__ void __launch_bounds__(kThreads) bounds_kernel(
    Bags bags, Part table, int64_t* bounds, Lanes lanes, Report report) {
  const int64_t bag = group_index(lanes);
  const int lane = static_cast<int>(threadIdx.x) & (lanes.group - 1);
  if (bag >= bags.count) {
    return;
  }
  const BagRange range = bag_range(bags, bag, report);
  for (int64_t e = range.begin + lane; e < range.end; e += lanes.group) {
    row_of(table, bags.indices[e], e, report, BadInput::kBagIndex);
  }
  if (lane == 0) {
    bounds[bag + 1] = range.end;
  }
}

// The lanes of a group take the entries of a bag in turn.
Lanes lanes_for_entries(const Bags& bags) {
  return {
      lanes_for(std::max<int64_t>(1, bags.indices.count / bags.count), 1).group,
      1};
}

template <int kStep, typename T>
__global__ void __launch_bounds__(kThreads) dots_kernel(
    BagTable table,
    Bags bags,
    WeightsGradient weights,
    Lanes lanes,
    Report report) {
  using S = Sum<T>;
  const T* const grad = static_cast<const T*>(weights.grad);
  T* const out = static_cast<T*>(weights.out);
  const int64_t bag = group_index(lanes);
  const int lane = static_cast<int>(threadIdx.x) & (lanes.group - 1);
  BagRange range{0, 0};
  if (bag < bags.count) {
    range = bag_range(bags, bag, report);
  }
  // All lanes of a warp take part in each sum, so all go on to the longest bag.
  int64_t length = range.end - range.begin;
  for (int other = 16; other > 0; other /= 2) {
    length = max(length, __shfl_xor_sync(0xffffffffu, length, other));
  }
  const T* const mine = grad + bag * table.width;
  for (int64_t i = 0; i < length; ++i) {
    const int64_t e = range.begin + i;
    S sum = 0;
    if (e < range.end) {
      const int64_t index = bags.indices[e];
      const int64_t row =
          row_of(table.part, index, e, report, BadInput::kBagIndex);
      if (row >= 0 && index != bags.padding) {
        const T* const data =
            static_cast<const T*>(table.data) + row * table.stride;
        for (int64_t c = lane * kStep; c < table.width;
             c += lanes.group * kStep) {
          S a[kStep];
          S b[kStep];
          load<kStep>(mine + c, a);
          load<kStep>(data + c, b);
#pragma unroll
          for (int k = 0; k < kStep; ++k) {
            sum += a[k] * b[k];
          }
        }
      }
    }
    for (int other = lanes.group / 2; other > 0; other /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, other);
    }
    if (lane == 0 && e < range.end) {
      out[e] = narrowed<T>(sum);
    }
  }
}

}  // namespace

cudaError_t bag_entries(
    const Bags& bags,
    const Part& part,
    const BagEntryOut& entries,
    const Launch& launch) {
  const int64_t n = bags.indices.count;
  const auto blocks = static_cast<unsigned>((n + kThreads - 1) / kThreads);
  absent_kernel<<<blocks, kThreads, 0, launch.stream>>>(
      entries.sort.rows[0], n, static_cast<uint32_t>(part.rows));
  if (bags.count > 0) {
    const Lanes lanes = lanes_for_entries(bags);
    entries_kernel<<<grid_for(bags.count, lanes), kThreads, 0, launch.stream>>>(
        bags, part, entries, lanes, launch.report);
  }
  return cudaGetLastError();
}

cudaError_t bag_bounds(
    const Bags& bags, int64_t rows, int64_t* bounds, const Launch& launch) {
  if (bags.count == 0) {
    return cudaSuccess;
  }
  const Lanes lanes = lanes_for_entries(bags);
  bounds_kernel<<<grid_for(bags.count, lanes), kThreads, 0, launch.stream>>>(
      bags, {0, rows, rows}, bounds, lanes, launch.report);
  return cudaGetLastError();
}

cudaError_t bag_weights_gradient(
    const BagTable& table,
    const Bags& bags,
    const WeightsGradient& weights,
    const Launch& launch) {
  return launch_by_bag</*kOneTile=*/true>(
      table, bags, weights, weights.grad, launch, [](auto step, auto zero) {
        return dots_kernel<step(), decltype(zero)>;
      });
}

}  // namespace tessera::detail::cuda
