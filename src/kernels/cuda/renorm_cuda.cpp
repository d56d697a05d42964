#include "kernels/cuda/call.h"
#include "kernels/cuda/renorm.h"
#include "kernels/lookup/renorm.h"

namespace tessera::detail {

bool renorm_rows_cuda(
    const at::Tensor& weight,
    const at::Tensor& wanted,
    int64_t first_row,
    double max_norm,
    double norm_type) {
  const auto dtype = cuda::scalar_of(weight.scalar_type());
  if (!dtype.has_value() || (weight.stride(1) != 1 && weight.size(1) > 1)) {
    return false;
  }
  const cuda::Call call(weight);
  const at::Tensor rows = wanted.contiguous();
  C10_CUDA_CHECK(cuda::renorm_rows(
      {weight.mutable_data_ptr(),
       weight.stride(0),
       weight.size(1),
       *dtype,
       {first_row, weight.size(0), first_row + weight.size(0)}},
      rows.const_data_ptr<int64_t>(),
      rows.numel(),
      max_norm,
      norm_type,
      call.stream()));
  return true;
}

}  // namespace tessera::detail
