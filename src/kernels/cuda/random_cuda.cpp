#include <ATen/ops/empty_like.h>

#include "kernels/cuda/call.h"
#include "kernels/cuda/random.h"
#include "kernels/random/random_fill.h"

namespace tessera::detail {

namespace {

void fill_on_gpu(
    const at::Tensor& shard,
    const RandomDraw& draw,
    RandomStream stream,
    const RandomRegion& region) {
  if (region.size() > cuda::kRandomDims) {
    fill_random_on_host(shard, draw, stream, region);
    return;
  }
  const cuda::Call call(shard);
  const auto dtype = cuda::scalar_of(shard.scalar_type());
  const bool direct = dtype.has_value() && shard.is_contiguous();
  const at::Tensor out = direct ? shard
                                : at::empty_like(
                                      shard,
                                      shard.options().dtype(at::kDouble),
                                      at::MemoryFormat::Contiguous);
  cuda::RandomBox box{};
  box.dims = static_cast<int>(region.size());
  for (int d = 0; d < box.dims; ++d) {
    box.begin[d] = region[d].begin;
    box.size[d] = region[d].size;
    box.whole[d] = region[d].whole;
  }
  C10_CUDA_CHECK(cuda::fill_random(
      {draw,
       stream,
       box,
       shard.numel(),
       direct ? *dtype : cuda::Scalar::kDouble,
       out.mutable_data_ptr()},
      call.stream()));
  if (!direct) {
    shard.copy_(out);
  }
}

}  // namespace

decltype(fill_random_)* fill_random_cuda() { return fill_on_gpu; }

}  // namespace tessera::detail
