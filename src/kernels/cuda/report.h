// How a kernel says that it met a bad index, without anyone waiting for it.
//
// A kernel that meets one treats the entry as absent and writes a record into
// host memory that the device can reach. The host looks at the record whenever
// it passes by (kernels/device_errors.h): a read of its own memory.
#pragma once

#include <cstdint>

namespace tessera::detail::cuda {

enum class BadInput : int32_t {
  kNone = 0,
  kLookupIndex,  // value: the index, bound: the table's rows
  kBagIndex,     // the same
  kGatherIndex,  // value: the index, bound: the size, other: the dimension
  kBagOffsets,   // value: an offset, other: the next, bound: the indices
};

// In pinned host memory, one a device.
struct Record {
  int32_t kind;  // a BadInput
  int64_t value;
  int64_t bound;
  int64_t other;
};

// In device memory, one a device.
struct Claim {
  int32_t lock;
  int64_t place;  // of the record; kNoPlace if there is none
};
inline constexpr int64_t kNoPlace = INT64_MAX;

// What kernels are given. The pointers are valid on the device.
struct Report {
  Record* record;
  int32_t* flag;  // in pinned host memory too: set for any record of any device
  Claim* claim;
};

#ifdef __CUDACC__
// Leaves a record, unless there is one of an earlier `place` in the list that
// the kernel reads: so it is the first bad one, whatever the order of threads.
__device__ inline void report_bad(
    const Report& report,
    int64_t place,
    BadInput kind,
    int64_t value,
    int64_t bound,
    int64_t other = 0) {
  volatile int64_t* const best = &report.claim->place;
  // Most give way to an earlier one before they get the lock.
  while (place < *best) {
    if (atomicCAS(&report.claim->lock, 0, 1) != 0) {
      continue;
    }
    __threadfence();
    if (place < *best) {
      *best = place;
      report.record->value = value;
      report.record->bound = bound;
      report.record->other = other;
      report.record->kind = static_cast<int32_t>(kind);
      __threadfence_system();
      *const_cast<volatile int32_t*>(report.flag) = 1;
    }
    __threadfence();
    atomicExch(&report.claim->lock, 0);
  }
}
#endif

}  // namespace tessera::detail::cuda
