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

cudaError_t fill_random(const RandomFill& fill, cudaStream_t stream) {
  if (fill.count == 0) {
    return cudaSuccess;
  }
  return with_scalar(fill.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto blocks =
        static_cast<unsigned>((fill.count + kThreads - 1) / kThreads);
    fill_kernel<T><<<blocks, kThreads, 0, stream>>>(
        fill.draw,
        fill.stream,
        fill.box,
        fill.count,
        static_cast<T*>(fill.out));
    return cudaGetLastError();
  });
}

}  // namespace tessera::detail::cuda
