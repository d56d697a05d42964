#include "kernels/lookup/renorm.h"

#include <algorithm>

#include "kernels/kernels_for.h"
#include "kernels/lookup/lookup_kernels.h"

namespace tessera::detail {

void renorm_rows_(
    const at::Tensor& weight, const HeldRows& held, const NormLimit& limit) {
  kernels_for<LookupKernels>(weight).renorm(weight, held, limit);
}

at::Tensor held_rows(
    const at::Tensor& wanted, int64_t first_row, int64_t rows) {
  const at::Tensor on_cpu = wanted.cpu();
  const auto* const begin = on_cpu.const_data_ptr<int64_t>();
  const auto* const end = begin + on_cpu.size(0);
  const auto* const first = std::lower_bound(begin, end, first_row);
  const auto* const last = std::lower_bound(first, end, first_row + rows);
  return wanted.narrow(0, first - begin, last - first).sub(first_row);
}

}  // namespace tessera::detail
