#include "kernels/cuda/gather.h"

#include "kernels/cuda/lanes.cuh"

namespace tessera::detail::cuda {

namespace {

__device__ int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// The offset of the element that entry i names, or -1.
__device__ int64_t
element_of(const GatherPlaces& places, int64_t i, const Report& report) {
  const int64_t index = places.index[i];
  if (static_cast<uint64_t>(index) >= static_cast<uint64_t>(places.size)) {
    report_bad(
        report, i, BadInput::kGatherIndex, index, places.size, places.dim);
    return -1;
  }
  const int64_t local = index - places.first;
  if (static_cast<uint64_t>(local) >= static_cast<uint64_t>(places.held)) {
    return -1;
  }
  int64_t rest = i;
  int64_t offset = places.dims == 0 ? 0 : local * places.strides[places.dim];
  for (int d = places.dims - 1; d >= 0; --d) {
    if (d != places.dim) {
      offset += rest % places.sizes[d] * places.strides[d];
    }
    rest /= places.sizes[d];
  }
  return offset;
}

template <typename W>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(GatherPlaces places, const W* self, W* out, Report report) {
  const int64_t i = thread_index();
  if (i < places.index.count) {
    const int64_t element = element_of(places, i, report);
    out[i] = element < 0 ? W{} : self[element];
  }
}

__global__ void __launch_bounds__(kThreads) entries_kernel(
    GatherPlaces places,
    uint32_t absent,
    uint32_t* rows,
    uint32_t* entry_places,
    Report report) {
  const int64_t i = thread_index();
  if (i < places.index.count) {
    const int64_t element = element_of(places, i, report);
    rows[i] = element < 0 ? absent : static_cast<uint32_t>(element);
    entry_places[i] = static_cast<uint32_t>(i);
  }
}

unsigned blocks_for(int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

template <typename W>
cudaError_t copy_elements(
    const GatherPlaces& places, const GatherCopy& copy, const Launch& launch) {
  const unsigned blocks = blocks_for(places.index.count);
  gather_kernel<W><<<blocks, kThreads, 0, launch.stream>>>(
      places,
      static_cast<const W*>(copy.self),
      static_cast<W*>(copy.out),
      launch.report);
  return cudaGetLastError();
}

}  // namespace

cudaError_t gather(
    const GatherPlaces& places, const GatherCopy& copy, const Launch& launch) {
  if (places.index.count == 0) {
    return cudaSuccess;
  }
  switch (copy.element_bytes) {
    case 1:
      return copy_elements<uint8_t>(places, copy, launch);
    case 2:
      return copy_elements<uint16_t>(places, copy, launch);
    case 4:
      return copy_elements<uint32_t>(places, copy, launch);
    case 8:
      return copy_elements<uint64_t>(places, copy, launch);
    case 16:
      return copy_elements<uint4>(places, copy, launch);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t gather_entries(
    const GatherPlaces& places,
    int64_t elements,
    const SortMemory& memory,
    const Launch& launch) {
  const unsigned blocks = blocks_for(places.index.count);
  entries_kernel<<<blocks, kThreads, 0, launch.stream>>>(
      places,
      static_cast<uint32_t>(elements),
      memory.rows[0],
      memory.places[0],
      launch.report);
  return cudaGetLastError();
}

}  // namespace tessera::detail::cuda
