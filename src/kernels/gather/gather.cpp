#include "kernels/gather/gather.h"

#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "kernels/gather/gather_kernels.h"
#include "kernels/kernels_for.h"
#include "kernels/lookup/embedding_index.h"
#include "kernels/resolved.h"

namespace tessera::detail {
namespace {

// Returns the places with a `dim` that is not negative.
HeldPlaces check_gather(
    c10::IntArrayRef local_sizes, const HeldPlaces& places) {
  const auto& [given_dim, index, first, size] = places;
  check_index_dtype("gather", index);
  const auto dims = static_cast<int64_t>(local_sizes.size());
  TORCH_CHECK_VALUE(
      index.dim() == dims,
      "[gather] expected an index of as many dimensions as the input, ",
      dims,
      ", but got ",
      index.dim());
  const int64_t dim = c10::maybe_wrap_dim(given_dim, dims);
  // A scalar is gathered from like a tensor of one entry.
  check_held_range("gather", first, dims == 0 ? 1 : local_sizes[dim], size);
  for (int64_t d = 0; d < dims; ++d) {
    TORCH_CHECK_VALUE(
        d == dim || index.size(d) <= local_sizes[d] || index.numel() == 0,
        "[gather] expected an index of at most the input's size ",
        local_sizes[d],
        " in dimension ",
        d,
        " but got ",
        index.size(d));
  }
  return {dim, index, first, size};
}

void check_gradient(const at::Tensor& grad, const at::Tensor& index) {
  TORCH_CHECK_VALUE(
      grad.sizes() == index.sizes(),
      "[gather_backward] expected a gradient of the shape of the index, ",
      index.sizes(),
      ", but got ",
      grad.sizes());
  TORCH_CHECK_TYPE(
      grad.is_floating_point() || grad.is_complex(),
      "[gather_backward] expected a floating point or complex gradient but "
      "got ",
      grad.scalar_type());
}

}  // namespace

void throw_outside_dimension(int64_t index, int64_t dim, int64_t size) {
  TORCH_CHECK_INDEX(
      size > 0,
      "[gather] index ",
      index,
      " is outside dimension ",
      dim,
      " of size 0; no index is valid");
  TORCH_CHECK_INDEX(
      false,
      "[gather] index ",
      index,
      " is outside dimension ",
      dim,
      " of size ",
      size,
      "; expected 0 to ",
      size - 1);
}

at::Tensor gather_part(const at::Tensor& self, const HeldPlaces& places) {
  const auto checked = check_gather(self.sizes(), places);
  return kernels_for<GatherKernels>(self).forward(resolved(self), checked);
}

at::Tensor gather_part_backward(
    const at::Tensor& grad,
    const HeldPlaces& places,
    c10::IntArrayRef local_sizes) {
  const auto checked = check_gather(local_sizes, places);
  check_gradient(grad, places.index);
  return kernels_for<GatherKernels>(grad).backward(
      resolved(grad), checked, local_sizes);
}

}  // namespace tessera::detail
