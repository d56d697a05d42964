#include "kernels/cuda/random.h"

#include "kernels/cuda/lanes.cuh"

namespace tessera::detail::cuda {

namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads) fill_kernel(
    RandomDraw draw,
    RandomStream stream,
    RandomBox box,
    int64_t count,
    T* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) {
    return;
  }
  int64_t global = 0;
  int64_t rest = i;
  int64_t scale = 1;
  for (int d = box.dims - 1; d >= 0; --d) {
    global += (box.begin[d] + rest % box.size[d]) * scale;
    rest /= box.size[d];
    scale *= box.whole[d];
  }
  out[i] = narrowed<T>(drawn(draw, stream, static_cast<uint64_t>(global)));
}

}  // namespace

cudaError_t fill_random(
    const RandomDraw& draw,
    RandomStream stream,
    const RandomBox& box,
    int64_t count,
    Scalar dtype,
    void* out,
    cudaStream_t cuda_stream) {
  if (count == 0) {
    return cudaSuccess;
  }
  return with_scalar(dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto blocks =
        static_cast<unsigned>((count + kThreads - 1) / kThreads);
    fill_kernel<T><<<blocks, kThreads, 0, cuda_stream>>>(
        draw, stream, box, count, static_cast<T*>(out));
    return cudaGetLastError();
  });
}

}  // namespace tessera::detail::cuda
