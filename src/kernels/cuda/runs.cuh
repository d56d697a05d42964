// Sums over runs of equal rows.
//
// Sorted entries are cut into chunks of kChunk, one a group of lanes, whatever
// the rows are: a row that is named a million times is spread over many groups,
// as a million rows are. A run within a chunk is summed in registers and handed
// to the sink at once. A run that crosses chunks leaves a partial sum in each,
// and join_runs adds those: a group for a short run, a block for a long one.
// The order of additions depends only on the entries, so the bits do too.
//
//   Source: fetch<kStep>(place, column) reads what an entry's terms follow
//   from;
//           widen(fetched, sums) makes them.
//   Sink:   prefetch(row, column) says that a row's sums will come;
//           store(row, entry, count, column, sums) takes the sums of a row,
//           which has `count` entries of which `entry` is one.
//
// Reading comes apart from computing so that several reads are under way.
#pragma once

#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/runs.h"
#include "kernels/cuda/sorted.h"

namespace tessera::detail::cuda {

// Entries that are read before the first is added.
inline constexpr int kInFlight = 4;

// Partial sums of `width` columns, two rows a chunk.
template <typename S>
struct Partials {
  S* data;
  int64_t width;

  // Of the run that begins before the chunk.
  __device__ S* head(int64_t chunk) const { return data + 2 * chunk * width; }
  // Of the run that begins in the chunk and goes on behind it.
  __device__ S* tail(int64_t chunk) const { return head(chunk) + width; }
};

// The chunks whose last run is a long one, for join_long_runs.
struct LongRuns {
  uint32_t* count;
  uint32_t* chunks;
};

template <int kStep, typename S>
__device__ inline void add_to(S (&sums)[kStep], const S (&terms)[kStep]) {
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    sums[i] += terms[i];
  }
}

template <int kStep, typename S, class Source, class Sink>
__global__ void __launch_bounds__(kThreads) sum_runs(
    Sorted sorted,
    int64_t width,
    Lanes lanes,
    Source source,
    Sink sink,
    Partials<S> partials) {
  const auto chunk = static_cast<uint32_t>(group_index(lanes));
  const auto column = static_cast<int>(column_of<kStep>(lanes));
  const auto count = static_cast<uint32_t>(sorted.count);
  const uint32_t begin = chunk * kChunk;
  if (begin >= count || column >= width) {
    return;
  }
  const uint32_t end = min(begin + kChunk, count);
  const uint32_t absent = sorted.absent;
  // Whether the first run began before, and whether the last one goes on.
  const bool from_before =
      begin > 0 && sorted.rows[begin - 1] == sorted.rows[begin];
  const bool goes_on = end < count && sorted.rows[end] == sorted.rows[end - 1];

  uint32_t row = absent;
  uint32_t first = begin;  // of the run, in this chunk
  S sums[kStep] = {};
  const auto finish = [&](uint32_t past) {
    if (row == absent) {
      return;
    }
    if (first == begin && from_before) {
      store<kStep>(partials.head(chunk) + column, sums);
    } else if (past == end && goes_on) {
      store<kStep>(partials.tail(chunk) + column, sums);
    } else {
      sink.store(row, first, past - first, column, sums);
    }
  };

  for (uint32_t i = begin; i < end; i += kInFlight) {
    // Chunks start at multiples of 16 bytes, and there is room behind the last.
    const uint4 rows4 = *reinterpret_cast<const uint4*>(sorted.rows + i);
    const uint4 places4 = *reinterpret_cast<const uint4*>(sorted.places + i);
    uint32_t rows[kInFlight] = {rows4.x, rows4.y, rows4.z, rows4.w};
    const uint32_t places[kInFlight] = {
        places4.x, places4.y, places4.z, places4.w};
    decltype(source.template fetch<kStep>(0, column)) fetched[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (i + k >= end) {
        rows[k] = absent;
      }
      if (rows[k] != absent) {
        fetched[k] = source.template fetch<kStep>(places[k], column);
      }
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (rows[k] != absent && rows[k] != (k == 0 ? row : rows[k - 1])) {
        sink.prefetch(rows[k], column);
      }
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (rows[k] != row) {
        finish(i + k);
        row = rows[k];
        first = i + k;
#pragma unroll
        for (int c = 0; c < kStep; ++c) {
          sums[c] = 0;
        }
      }
      if (row != absent) {
        S terms[kStep];
        source.widen(fetched[k], terms);
        add_to(sums, terms);
      }
    }
    if (row == absent) {
      return;  // and so are all that follow
    }
  }
  finish(end);
}

// A run that begins in `chunk` and goes on behind it.
struct CrossingRun {
  uint32_t row;
  int64_t first;
  int64_t past;

  __device__ int64_t last_chunk() const { return (past - 1) / kChunk; }
};

// False if no run begins in `chunk` and goes on behind it.
__device__ inline bool find_crossing_run(
    const Sorted& sorted, int64_t chunk, CrossingRun* run) {
  const int64_t begin = chunk * kChunk;
  const int64_t end = begin + kChunk;
  if (end >= sorted.count) {
    return false;
  }
  const uint32_t row = sorted.rows[end - 1];
  if (row == sorted.absent || sorted.rows[end] != row ||
      (begin > 0 && sorted.rows[begin - 1] == row)) {
    return false;
  }
  run->row = row;
  int64_t first = end - 1;
  while (first > begin && sorted.rows[first - 1] == row) {
    --first;
  }
  run->first = first;
  // Most runs end in the next chunk: steps that double, then halve.
  int64_t known = end;
  int64_t step = kChunk;
  while (known + step < sorted.count && sorted.rows[known + step] == row) {
    known += step;
    step *= 2;
  }
  int64_t past = min(known + step, sorted.count);
  while (known + 1 < past) {
    const int64_t middle = (known + past) / 2;
    if (sorted.rows[middle] == row) {
      known = middle;
    } else {
      past = middle;
    }
  }
  run->past = past;
  return true;
}

template <int kStep, typename S, class Sink>
__device__ void store_run(
    const Sink& sink,
    const CrossingRun& run,
    int64_t column,
    S (&sums)[kStep]) {
  sink.store(
      run.row,
      static_cast<uint32_t>(run.first),
      static_cast<uint32_t>(run.past - run.first),
      static_cast<int>(column),
      sums);
}

// What joining runs takes.
template <typename S, class Sink>
struct RunJoin {
  Sorted sorted;
  int64_t width;
  Lanes lanes;
  Sink sink;
  Partials<S> partials;
  LongRuns long_runs;
};

template <int kStep, typename S, class Sink>
__global__ void __launch_bounds__(kThreads) join_runs(RunJoin<S, Sink> join) {
  const auto& [sorted, width, lanes, sink, partials, long_runs] = join;
  const int64_t chunk = group_index(lanes);
  const int64_t column = column_of<kStep>(lanes);
  CrossingRun run;
  if (column >= width || chunk * kChunk >= sorted.count ||
      !find_crossing_run(sorted, chunk, &run)) {
    return;
  }
  const int64_t last = run.last_chunk();
  if (last - chunk > kLongRun) {
    if (column == 0) {
      long_runs.chunks[atomicAdd(long_runs.count, 1)] =
          static_cast<uint32_t>(chunk);
    }
    return;
  }
  S sums[kStep];
  load<kStep>(partials.tail(chunk) + column, sums);
  for (int64_t c = chunk + 1; c <= last; ++c) {
    S terms[kStep];
    load<kStep>(partials.head(c) + column, terms);
    add_to(sums, terms);
  }
  store_run(sink, run, column, sums);
}

inline constexpr int kLongThreads = 1024;

template <int kStep, typename S, class Sink>
__global__ void __launch_bounds__(kLongThreads)
    join_long_runs(RunJoin<S, Sink> join) {
  const auto& [sorted, width, lanes, sink, partials, long_runs] = join;
  __shared__ S shared[kLongThreads * kStep];
  const int64_t column = column_of<kStep>(lanes);
  const int groups = kLongThreads / lanes.group;
  const int group = static_cast<int>(threadIdx.x) / lanes.group;
  S* const mine = shared + threadIdx.x * kStep;
  const uint32_t count = *long_runs.count;
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const int64_t chunk = long_runs.chunks[i];
    CrossingRun run;
    find_crossing_run(sorted, chunk, &run);
    const int64_t last = run.last_chunk();
    S sums[kStep] = {};
    if (column < width) {
      int64_t c = chunk + 1 + group;
      for (; c + 3 * groups <= last; c += 4 * groups) {
        S terms[4][kStep];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          load<kStep>(partials.head(c + k * groups) + column, terms[k]);
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          add_to(sums, terms[k]);
        }
      }
      for (; c <= last; c += groups) {
        S terms[kStep];
        load<kStep>(partials.head(c) + column, terms);
        add_to(sums, terms);
      }
    }
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
      mine[k] = sums[k];
    }
    for (int half = groups / 2; half > 0; half /= 2) {
      __syncthreads();
      if (group < half) {
        const S* other = mine + half * lanes.group * kStep;
#pragma unroll
        for (int k = 0; k < kStep; ++k) {
          mine[k] += other[k];
        }
      }
    }
    if (group == 0 && column < width) {
      load<kStep>(partials.tail(chunk) + column, sums);
#pragma unroll
      for (int k = 0; k < kStep; ++k) {
        sums[k] += mine[k];
      }
      store_run(sink, run, column, sums);
    }
    __syncthreads();
  }
}

// All three, one after the other. `scratch` is run_scratch(...) bytes.
template <int kStep, typename S, class Source, class Sink>
cudaError_t run_sums(
    const Sorted& sorted,
    int64_t width,
    const Source& source,
    const Sink& sink,
    void* scratch,
    cudaStream_t stream) {
  if (sorted.count == 0 || width == 0) {
    return cudaSuccess;
  }
  const int64_t chunks = chunks_of(sorted.count);
  const Lanes lanes = lanes_for(width, kStep);
  const dim3 grid = grid_for(chunks, lanes);
  const Partials<S> partials{static_cast<S*>(scratch), width};
  auto* const numbers =
      reinterpret_cast<uint32_t*>(partials.data + 2 * chunks * width);
  const LongRuns long_runs{numbers, numbers + 1};
  const cudaError_t error =
      cudaMemsetAsync(numbers, 0, sizeof(uint32_t), stream);
  if (error != cudaSuccess) {
    return error;
  }
  sum_runs<kStep, S><<<grid, kThreads, 0, stream>>>(
      sorted, width, lanes, source, sink, partials);
  const RunJoin<S, Sink> join{sorted, width, lanes, sink, partials, long_runs};
  if (chunks > 1) {
    join_runs<kStep><<<grid, kThreads, 0, stream>>>(join);
  }
  if (chunks > kLongRun) {
    // As many blocks as there can be long runs, but no more than fill a device.
    const int64_t most = chunks / kLongRun + 1;
    const dim3 long_grid(
        static_cast<unsigned>(most < 1024 ? most : 1024), lanes.tiles);
    join_long_runs<kStep><<<long_grid, kLongThreads, 0, stream>>>(join);
  }
  return cudaGetLastError();
}

}  // namespace tessera::detail::cuda
