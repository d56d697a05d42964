#include "ops/reduced_dims.h"

#include <ATen/WrapDimUtils.h>

namespace tessera::detail {

ReducedDims reduced_dims(const at::Tensor& self, at::OptionalIntArrayRef dims) {
  ReducedDims all;
  if (dims.has_value()) {
    all.append(dims->begin(), dims->end());
  }
  if (all.empty()) {
    for (int64_t d = 0; d < self.dim(); ++d) {
      all.push_back(d);
    }
  }
  at::maybe_wrap_dims(all, self.dim());
  return all;
}

int64_t reduced_count(const at::Tensor& self, at::IntArrayRef dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) {
    count *= self.dim() == 0 ? 1 : self.size(dim);
  }
  return count;
}

}  // namespace tessera::detail
