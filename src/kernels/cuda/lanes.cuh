// How the threads of a kernel share rows: a group of 1 to 32 neighbouring lanes
// takes a row, each lane a few neighbouring columns, 16 bytes where the memory
// is aligned for it. Rows that are too wide for a group are cut into tiles, one
// a blockIdx.y. What is computed does not depend on any of this.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/memory.h"

namespace tessera::detail::cuda {

inline constexpr int kThreads = 256;

struct Lanes {
  int group;  // a power of two
  int tiles;
};

// For rows of `width` columns, of which a lane takes `step`.
inline Lanes lanes_for(int64_t width, int64_t step) {
  const int64_t wanted = (width + step - 1) / step;
  int group = 1;
  while (group < 32 && group < wanted) {
    group *= 2;
  }
  const int64_t tiles = (wanted + group - 1) / group;
  return {group, static_cast<int>(tiles < 1 ? 1 : tiles)};
}

// Blocks of `threads` that give every one of `groups` a group for each tile.
inline dim3 grid_for(int64_t groups, Lanes lanes, int threads = kThreads) {
  const int64_t in_block = threads / lanes.group;
  return dim3(
      static_cast<unsigned>((groups + in_block - 1) / in_block),
      static_cast<unsigned>(lanes.tiles));
}

// Which group this thread belongs to, among all of the grid.
__device__ inline int64_t group_index(Lanes lanes) {
  return (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) /
         lanes.group;
}

// The first column of this thread.
template <int kStep>
__device__ inline int64_t column_of(Lanes lanes) {
  const int lane = static_cast<int>(threadIdx.x) & (lanes.group - 1);
  return (static_cast<int64_t>(blockIdx.y) * lanes.group + lane) * kStep;
}

template <typename T>
struct SumOf {
  using type = float;
};
template <>
struct SumOf<double> {
  using type = double;
};
template <typename T>
using Sum = typename SumOf<T>::type;

__device__ inline int32_t widened(int32_t v) { return v; }
__device__ inline float widened(float v) { return v; }
__device__ inline double widened(double v) { return v; }
__device__ inline float widened(__half v) { return __half2float(v); }
__device__ inline float widened(__nv_bfloat16 v) { return __bfloat162float(v); }

// Rounded to the nearest even.
template <typename T, typename S>
__device__ inline T narrowed(S v) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(static_cast<float>(v));
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(static_cast<float>(v));
  } else {
    return static_cast<T>(v);
  }
}

template <int kBytes>
using Word = std::conditional_t<
    kBytes == 16,
    uint4,
    std::conditional_t<
        kBytes == 8,
        uint2,
        std::conditional_t<
            kBytes == 4,
            uint32_t,
            std::conditional_t<kBytes == 2, uint16_t, uint8_t>>>>;

// kStep neighbours of T as they are in memory. Kernels read several of these
// before they widen the first: a conversion would wait for its load.
template <typename T, int kStep>
struct Raw {
  static constexpr int kBytes = sizeof(T) * kStep;
  static constexpr int kWord = kBytes < 16 ? kBytes : 16;
  Word<kWord> words[kBytes / kWord];
};

template <int kStep, typename T>
__device__ inline Raw<T, kStep> fetch(const T* from) {
  using R = Raw<T, kStep>;
  R raw;
#pragma unroll
  for (int i = 0; i < R::kBytes / R::kWord; ++i) {
    raw.words[i] = reinterpret_cast<const Word<R::kWord>*>(from)[i];
  }
  return raw;
}

template <typename T, typename S, int kStep>
__device__ inline void widen(const Raw<T, kStep>& raw, S (&to)[kStep]) {
  T values[kStep];
  memcpy(values, &raw, sizeof(raw));
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    to[i] = static_cast<S>(widened(values[i]));
  }
}

template <int kStep, typename T, typename S>
__device__ inline void load(const T* from, S (&to)[kStep]) {
  widen(fetch<kStep>(from), to);
}

// Writes kStep neighbours of T, rounded.
template <int kStep, typename T, typename S>
__device__ inline void store(T* to, const S (&from)[kStep]) {
  using R = Raw<T, kStep>;
  T values[kStep];
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    values[i] = narrowed<T>(from[i]);
  }
  R raw;
  memcpy(&raw, values, sizeof(raw));
#pragma unroll
  for (int i = 0; i < R::kBytes / R::kWord; ++i) {
    reinterpret_cast<Word<R::kWord>*>(to)[i] = raw.words[i];
  }
}

// How many T of a row a lane can take at once: 16 bytes' worth if `width`
// columns, rows `stride` apart and `data` all allow it, else one.
template <typename T>
bool allows_words(const void* data, int64_t width, int64_t stride) {
  constexpr int64_t kStep = 16 / sizeof(T);
  return width % kStep == 0 && stride % kStep == 0 &&
         reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

// Calls f(T{}) with the type that `scalar` names.
template <class F>
cudaError_t with_scalar(Scalar scalar, F&& f) {
  switch (scalar) {
    case Scalar::kFloat:
      return f(float{});
    case Scalar::kDouble:
      return f(double{});
    case Scalar::kHalf:
      return f(__half{});
    case Scalar::kBFloat16:
      return f(__nv_bfloat16{});
  }
  return cudaErrorInvalidValue;
}

}  // namespace tessera::detail::cuda
