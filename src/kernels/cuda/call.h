// What every call of a CUDA kernel needs from torch: the device, its current
// stream, memory of the caching allocator, and a place to report bad indices.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <optional>

#include "kernels/cuda/memory.h"
#include "kernels/cuda/sorted.h"

namespace tessera::detail::cuda {

class Call {
 public:
  // Makes the device of `tensor` current while this lives. Raises what earlier
  // kernels reported.
  explicit Call(const at::Tensor& tensor);

  cudaStream_t stream() const { return stream_; }
  const Report& report() const { return report_; }
  Launch launch() const { return {report_, stream_}; }

  // Memory that lives until the kernels launched so far have run.
  at::Tensor memory(size_t bytes) const;

  // Raises what is reported by now. With CUDA_LAUNCH_BLOCKING=1, or behind a
  // point that waits, this includes the kernels of this call.
  void finish() const;

 private:
  c10::Device device_;
  c10::cuda::CUDAGuard guard_;
  cudaStream_t stream_;
  Report report_;
};

// Sorted entries and the memory they stand in.
struct SortedEntries {
  at::Tensor memory;
  Sorted sorted;
};

// Memory for the entries of a sort, to be written by the caller's kernel.
struct EntryMemory {
  at::Tensor memory;
  SortMemory entries;
};
EntryMemory entry_memory(const Call& call, int64_t count);

// Sorts what was written there.
SortedEntries sorted_entries(
    const Call& call, const EntryMemory& memory, int64_t count, int64_t rows);

// number_runs' numbers, [count] of int32.
at::Tensor run_numbers(const Call& call, const Sorted& sorted);

// The distinct rows of `sorted`, each plus `first_row`, given their number.
at::Tensor distinct_row_list(
    const Call& call,
    const Sorted& sorted,
    const at::Tensor& numbers,
    int64_t first_row,
    int64_t count);

// Whether entries and rows are few enough to be sorted.
inline bool can_sort(int64_t count, int64_t rows) {
  return count <= kMostEntries && rows <= kMostRows;
}

// The type that sums can be made of; nullopt for others.
std::optional<Scalar> scalar_of(at::ScalarType dtype);

inline size_t sum_bytes(Scalar scalar) {
  return scalar == Scalar::kDouble ? 8 : 4;
}

// Requires: contiguous, int32 or int64.
Integers integers_of(const at::Tensor& list);

}  // namespace tessera::detail::cuda
