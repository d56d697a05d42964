#include "kernels/lookup/route.h"

#include <ATen/ops/_unique2.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/tensor.h>

#include "kernels/lookup/lookup_kernels.h"

namespace tessera::detail {

Route route_rows_composed(const at::Tensor& indices, c10::IntArrayRef bounds) {
  check_indices_composed(indices, bounds.back());
  Route route;
  std::tie(route.wanted, route.place, std::ignore) = at::_unique2(
      indices.to(at::kLong), /*sorted=*/true, /*return_inverse=*/true);
  const at::Tensor ends =
      at::searchsorted(
          route.wanted, at::tensor(bounds, indices.options().dtype(at::kLong)))
          .cpu();
  const auto* const end = ends.const_data_ptr<int64_t>();
  for (size_t owner = 0; owner + 1 < bounds.size(); ++owner) {
    route.counts.push_back(end[owner + 1] - end[owner]);
  }
  return route;
}

}  // namespace tessera::detail
