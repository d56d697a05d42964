// Kernels for vectors of the width that the machine has. The library is
// compiled for the oldest machine of its kind, so each kernel is compiled
// several times and chosen as the program runs; ATEN_CPU_CAPABILITY (default,
// avx2) holds it back, as it does ATen's own kernels.
#pragma once

// What runs inside a kernel must be inlined into it, or it would be compiled
// for the oldest machine. Vectors are handed over by reference, since their
// passing by value differs from machine to machine.
#define TESSERA_LANES_INLINE inline __attribute__((always_inline))

#if defined(__x86_64__)
#define TESSERA_HAS_WIDE_LANES 1
#define TESSERA_AVX2 __attribute__((target("avx2,fma")))
#define TESSERA_AVX512 \
  __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define TESSERA_HAS_WIDE_LANES 0
#endif

namespace tessera::detail {

enum class LaneWidth { kBase, kAvx2, kAvx512 };

// The widest that this machine has, at most the limit.
LaneWidth lane_width();

// Sets the limit, for all threads, and returns the one before: kAvx512 at
// first. For tests, which run each width. Not while kernels run.
LaneWidth limit_lane_width(LaneWidth most);

#if TESSERA_HAS_WIDE_LANES
template <typename Kernel>
TESSERA_AVX2 void run_avx2(const Kernel& kernel) {
  kernel.template run<32>();
}

template <typename Kernel>
TESSERA_AVX512 void run_avx512(const Kernel& kernel) {
  kernel.template run<64>();
}
#endif

// Calls kernel.run<Bytes>(), compiled for this machine's vectors of `Bytes`
// bytes.
// Requires: run, and all that it calls, is TESSERA_LANES_INLINE.
template <typename Kernel>
void run_on_lanes(const Kernel& kernel) {
#if TESSERA_HAS_WIDE_LANES
  switch (lane_width()) {
    case LaneWidth::kAvx512:
      return run_avx512(kernel);
    case LaneWidth::kAvx2:
      return run_avx2(kernel);
    case LaneWidth::kBase:
      break;
  }
#endif
  kernel.template run<16>();
}

}  // namespace tessera::detail
