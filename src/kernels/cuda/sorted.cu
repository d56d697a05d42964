#include "kernels/cuda/sorted.h"

#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include <algorithm>

#include "kernels/cuda/lanes.cuh"

namespace tessera::detail::cuda {

namespace {

unsigned blocks_for(int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

__device__ int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__global__ void entries_kernel(
    Integers indices,
    Part part,
    int64_t padding,
    uint32_t* rows,
    uint32_t* places,
    Report report) {
  const int64_t i = thread_index();
  if (i >= indices.count) {
    return;
  }
  const int64_t index = indices[i];
  const int64_t row = row_of(part, index, i, report, BadInput::kLookupIndex);
  rows[i] =
      static_cast<uint32_t>(row < 0 || index == padding ? part.rows : row);
  places[i] = static_cast<uint32_t>(i);
}

// How many bits the numbers up to `most` have.
int bits_of(int64_t most) {
  int bits = 1;
  while (most >> bits != 0) {
    ++bits;
  }
  return bits;
}

// 1 where entry i is the first of a row that is held.
struct StartsRun {
  const uint32_t* rows;
  uint32_t absent;
  __host__ __device__ uint32_t operator()(uint32_t i) const {
    return rows[i] != absent && (i == 0 || rows[i - 1] != rows[i]) ? 1 : 0;
  }
};

auto starts(const uint32_t* rows, uint32_t absent) {
  return thrust::make_transform_iterator(
      thrust::make_counting_iterator<uint32_t>(0), StartsRun{rows, absent});
}

__global__ void distinct_kernel(
    Sorted sorted, const uint32_t* numbers, int64_t first, int64_t* rows) {
  const int64_t i = thread_index();
  if (i < sorted.count &&
      StartsRun{sorted.rows, sorted.absent}(static_cast<uint32_t>(i)) == 1) {
    rows[numbers[i] - 1] = first + sorted.rows[i];
  }
}

__global__ void places_kernel(
    Sorted sorted, const uint32_t* numbers, int64_t* place) {
  const int64_t i = thread_index();
  if (i < sorted.count) {
    const bool held = sorted.rows[i] != sorted.absent;
    place[sorted.places[i]] = static_cast<int64_t>(numbers[i]) - (held ? 1 : 0);
  }
}

constexpr int kBounds = 256;
struct Bounds {
  int64_t at[kBounds];
};

// Threads [0, count) look for bounds.at, the one behind them for all rows.
__global__ void ends_kernel(
    Sorted sorted,
    const uint32_t* numbers,
    Bounds bounds,
    int count,
    int64_t* ends) {
  const int t = static_cast<int>(threadIdx.x);
  if (t > count) {
    return;
  }
  const int64_t bound =
      t < count ? min(bounds.at[t], static_cast<int64_t>(sorted.absent))
                : static_cast<int64_t>(sorted.absent);
  int64_t low = 0;
  int64_t high = sorted.count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (sorted.rows[middle] < bound) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  ends[t] = low == 0 ? 0 : numbers[low - 1];
}

using Buffers = cub::DoubleBuffer<uint32_t>;

// What is sorted, by the lowest `bits` of the keys.
struct Pairs {
  Buffers& keys;
  Buffers& values;
  int64_t count;
  int bits;
};

#if CUB_MAJOR_VERSION == 3 && CUB_MINOR_VERSION == 0
// CUB sorts by 8 bits at a time. Digits of 9 bits save a pass where rows have
// 9, 17, 18 or 25 to 27 bits, and cost little more than those of 8. CUB has no
// public option for it: other versions than this one sort as they do.
struct WideDigits {
  using Hub = cub::detail::radix::policy_hub<uint32_t, uint32_t, uint32_t>;
  using Tuned = Hub::OnesweepSmallKeyTunedPolicy<
      cub::detail::radix::sm90_small_key_tuning<4, 4, 4>>;
  struct Policy : cub::ChainedPolicy<800, Policy, Policy>, Tuned {
    static constexpr int ONESWEEP_RADIX_BITS = 9;
    using HistogramPolicy = cub::AgentRadixSortHistogramPolicy<
        128,
        16,
        1,
        uint32_t,
        ONESWEEP_RADIX_BITS>;
    using ExclusiveSumPolicy =
        cub::AgentRadixSortExclusiveSumPolicy<256, ONESWEEP_RADIX_BITS>;
    using OnesweepPolicy = cub::AgentRadixSortOnesweepPolicy<
        512,
        15,
        uint32_t,
        1,
        cub::RADIX_RANK_MATCH_EARLY_COUNTS_ANY,
        cub::BLOCK_SCAN_RAKING_MEMOIZE,
        cub::RADIX_SORT_STORE_DIRECT,
        ONESWEEP_RADIX_BITS>;
  };
  using MaxPolicy = Policy;

  static bool saves_a_pass(int bits) { return (bits + 8) / 9 < (bits + 7) / 8; }
  static cudaError_t sort(
      void* scratch, size_t& bytes, const Pairs& pairs, cudaStream_t stream) {
    return cub::DispatchRadixSort<
        cub::SortOrder::Ascending,
        uint32_t,
        uint32_t,
        uint32_t,
        cub::detail::identity_decomposer_t,
        WideDigits>::
        Dispatch(
            scratch,
            bytes,
            pairs.keys,
            pairs.values,
            static_cast<uint32_t>(pairs.count),
            0,
            pairs.bits,
            /*is_overwrite_okay=*/true,
            stream);
  }
};
#endif

// Without `scratch`, sets `bytes` to its size and does nothing else.
cudaError_t sort_pairs(
    void* scratch, size_t& bytes, const Pairs& pairs, cudaStream_t stream) {
#if CUB_MAJOR_VERSION == 3 && CUB_MINOR_VERSION == 0
  if (WideDigits::saves_a_pass(pairs.bits)) {
    return WideDigits::sort(scratch, bytes, pairs, stream);
  }
#endif
  return cub::DeviceRadixSort::SortPairs(
      scratch,
      bytes,
      pairs.keys,
      pairs.values,
      static_cast<int>(pairs.count),
      0,
      pairs.bits,
      stream);
}

}  // namespace

size_t sort_scratch(int64_t count, int64_t rows) {
  size_t bytes = 0;
  Buffers keys(nullptr, nullptr);
  Buffers values(nullptr, nullptr);
  sort_pairs(nullptr, bytes, {keys, values, count, bits_of(rows)}, nullptr);
  return bytes;
}

size_t number_scratch(int64_t count) {
  size_t bytes = 0;
  cub::DeviceScan::InclusiveSum(
      nullptr,
      bytes,
      starts(nullptr, 0),
      static_cast<uint32_t*>(nullptr),
      static_cast<int>(count));
  return bytes;
}

cudaError_t lookup_entries(
    const Integers& indices,
    const Part& part,
    int64_t padding,
    const SortMemory& memory,
    const Report& report,
    cudaStream_t stream) {
  entries_kernel<<<blocks_for(indices.count), kThreads, 0, stream>>>(
      indices, part, padding, memory.rows[0], memory.places[0], report);
  return cudaGetLastError();
}

cudaError_t sort_entries(
    const SortMemory& memory,
    int64_t count,
    int64_t rows,
    void* scratch,
    size_t scratch_bytes,
    Sorted* sorted,
    cudaStream_t stream) {
  Buffers keys(memory.rows[0], memory.rows[1]);
  Buffers values(memory.places[0], memory.places[1]);
  const cudaError_t error = sort_pairs(
      scratch, scratch_bytes, {keys, values, count, bits_of(rows)}, stream);
  *sorted = {
      keys.Current(), values.Current(), count, static_cast<uint32_t>(rows)};
  return error;
}

cudaError_t number_runs(
    const Sorted& sorted,
    uint32_t* numbers,
    void* scratch,
    size_t scratch_bytes,
    cudaStream_t stream) {
  return cub::DeviceScan::InclusiveSum(
      scratch,
      scratch_bytes,
      starts(sorted.rows, sorted.absent),
      numbers,
      static_cast<int>(sorted.count),
      stream);
}

cudaError_t distinct_rows(
    const Sorted& sorted,
    const uint32_t* numbers,
    int64_t first_row,
    int64_t* rows,
    cudaStream_t stream) {
  distinct_kernel<<<blocks_for(sorted.count), kThreads, 0, stream>>>(
      sorted, numbers, first_row, rows);
  return cudaGetLastError();
}

cudaError_t places_among(
    const Sorted& sorted,
    const uint32_t* numbers,
    int64_t* place,
    cudaStream_t stream) {
  places_kernel<<<blocks_for(sorted.count), kThreads, 0, stream>>>(
      sorted, numbers, place);
  return cudaGetLastError();
}

cudaError_t owner_ends(
    const Sorted& sorted,
    const uint32_t* numbers,
    const int64_t* bounds,
    int64_t owners,
    int64_t* ends,
    cudaStream_t stream) {
  int64_t done = 0;
  do {
    Bounds some;
    const int64_t count = std::min<int64_t>(owners - done, kBounds - 1);
    std::copy_n(bounds + done, count, some.at);
    ends_kernel<<<1, kBounds, 0, stream>>>(
        sorted, numbers, some, static_cast<int>(count), ends + done);
    done += count;
  } while (done < owners);
  return cudaGetLastError();
}

}  // namespace tessera::detail::cuda
