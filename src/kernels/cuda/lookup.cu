#include "kernels/cuda/lookup.h"

#include "kernels/cuda/lanes.cuh"

namespace tessera::detail::cuda {

namespace {

// Rows that a group has in flight at once.
constexpr int kRows = 8;

template <typename W>
__global__ void __launch_bounds__(kThreads)
    lookup_kernel(Lookup args, Lanes lanes, Report report) {
  const int64_t width = args.row_bytes / static_cast<int64_t>(sizeof(W));
  const int64_t column = column_of<1>(lanes);
  const int64_t begin = group_index(lanes) * kRows;
  if (begin >= args.indices.count) {
    return;
  }
  const int64_t left = args.indices.count - begin;
  int64_t rows[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    rows[r] = r < left ? row_of(
                             args.part,
                             args.indices[begin + r],
                             begin + r,
                             report,
                             BadInput::kLookupIndex)
                       : -1;
  }
  if (column >= width) {
    return;
  }
  W words[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    words[r] = W{};
    if (rows[r] >= 0) {
      words[r] = __ldg(
          reinterpret_cast<const W*>(
              static_cast<const char*>(args.table) +
              rows[r] * args.table_stride) +
          column);
    }
  }
  W* const out = static_cast<W*>(args.out) + begin * width + column;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r < left) {
      // The table's rows may be wanted again, these are not read here.
      __stcs(out + r * width, words[r]);
    }
  }
}

template <typename W>
bool fits(const Lookup& args) {
  return args.row_bytes % sizeof(W) == 0 &&
         args.table_stride % sizeof(W) == 0 &&
         reinterpret_cast<uintptr_t>(args.table) % sizeof(W) == 0 &&
         reinterpret_cast<uintptr_t>(args.out) % sizeof(W) == 0;
}

template <typename W>
cudaError_t launch(
    const Lookup& args, const Report& report, cudaStream_t stream) {
  const Lanes lanes = lanes_for(args.row_bytes / sizeof(W), 1);
  const int64_t groups = (args.indices.count + kRows - 1) / kRows;
  lookup_kernel<W>
      <<<grid_for(groups, lanes), kThreads, 0, stream>>>(args, lanes, report);
  return cudaGetLastError();
}

}  // namespace

cudaError_t lookup(
    const Lookup& args, const Report& report, cudaStream_t stream) {
  if (args.indices.count == 0) {
    return cudaSuccess;
  }
  return fits<uint4>(args)      ? launch<uint4>(args, report, stream)
         : fits<uint2>(args)    ? launch<uint2>(args, report, stream)
         : fits<uint32_t>(args) ? launch<uint32_t>(args, report, stream)
         : fits<uint16_t>(args) ? launch<uint16_t>(args, report, stream)
                                : launch<uint8_t>(args, report, stream);
}

}  // namespace tessera::detail::cuda
