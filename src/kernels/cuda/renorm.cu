#include "kernels/cuda/renorm.h"

#include <cmath>

#include "kernels/cuda/lanes.cuh"

namespace tessera::detail::cuda {

namespace {

struct Norm {
  double type;

  __device__ double term(double v) const {
    return type == 2     ? v * v
           : type == 0   ? (v != 0 ? 1.0 : 0.0)
           : isinf(type) ? fabs(v)
           : type == 1   ? fabs(v)
                         : pow(fabs(v), type);
  }
  __device__ double joined(double a, double b) const {
    return isinf(type) ? (a > b || a != a ? a : b) : a + b;
  }
  __device__ double whole(double sum) const {
    return type == 2                               ? sqrt(sum)
           : type == 0 || type == 1 || isinf(type) ? sum
                                                   : pow(sum, 1 / type);
  }
};

// A warp takes an entry. The first of a row's scales it: nobody has to know how
// many rows there are.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    renorm_kernel(RenormTable table, Sorted sorted) {
  const Norm norm{table.norm_type};
  const int64_t i =
      (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (i >= sorted.count) {
    return;
  }
  const uint32_t entry = sorted.rows[i];
  if (entry == sorted.absent || (i > 0 && sorted.rows[i - 1] == entry)) {
    return;
  }
  const auto row = static_cast<int64_t>(entry);
  T* const data = static_cast<T*>(table.data) + row * table.stride;
  double sum = 0;
  for (int64_t c = lane; c < table.width; c += 32) {
    sum = norm.joined(sum, norm.term(widened(data[c])));
  }
  for (int other = 16; other > 0; other /= 2) {
    sum = norm.joined(sum, __shfl_xor_sync(0xffffffffu, sum, other));
  }
  const double length = norm.whole(sum);
  if (length > table.max_norm) {
    const auto scale = static_cast<Sum<T>>(table.max_norm / (length + 1e-7));
    for (int64_t c = lane; c < table.width; c += 32) {
      data[c] = narrowed<T>(widened(data[c]) * scale);
    }
  }
}

}  // namespace

cudaError_t renorm_rows(
    const RenormTable& table, const Sorted& rows, cudaStream_t stream) {
  if (rows.count == 0) {
    return cudaSuccess;
  }
  return with_scalar(table.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto blocks =
        static_cast<unsigned>((rows.count * 32 + kThreads - 1) / kThreads);
    renorm_kernel<T><<<blocks, kThreads, 0, stream>>>(table, rows);
    return cudaGetLastError();
  });
}

}  // namespace tessera::detail::cuda
