#include "kernels/lookup/renorm.h"

#include <ATen/ops/embedding_renorm.h>

#include <algorithm>

namespace tessera::detail {

void renorm_rows_(
    const at::Tensor& weight,
    const at::Tensor& wanted,
    int64_t first_row,
    double max_norm,
    double norm_type) {
  if (weight.is_cuda() &&
      renorm_rows_cuda(weight, wanted, first_row, max_norm, norm_type)) {
    return;
  }
  const at::Tensor on_cpu = wanted.cpu();
  const auto* const begin = on_cpu.const_data_ptr<int64_t>();
  const auto* const end = begin + on_cpu.size(0);
  const auto* const first = std::lower_bound(begin, end, first_row);
  const auto* const last =
      std::lower_bound(first, end, first_row + weight.size(0));
  at::Tensor part = weight;
  at::embedding_renorm_(
      part,
      wanted.narrow(0, first - begin, last - first).sub(first_row),
      max_norm,
      norm_type);
}

}  // namespace tessera::detail
