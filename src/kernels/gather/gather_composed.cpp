#include <ATen/OpMathType.h>
#include <ATen/ops/zeros.h>

#include "kernels/gather/gather_kernels.h"

namespace tessera::detail {
namespace {

// Where `index` points in the part, 0 where it points elsewhere.
struct Places {
  at::Tensor local;
  at::Tensor away;
};

Places find_places(const HeldPlaces& part, int64_t held) {
  const auto& [dim, index, first, size] = part;
  if (!index.is_meta()) {
    const at::Tensor flat = index.reshape({-1});
    const at::Tensor bad = flat.lt(0).bitwise_or_(flat.ge(size)).nonzero();
    if (bad.size(0) > 0) {
      throw_outside_dimension(
          flat.select(0, bad.select(0, 0).item<int64_t>()).item<int64_t>(),
          dim,
          size);
    }
  }
  const at::Tensor local = index.to(at::kLong).sub(first);
  const at::Tensor away = local.lt(0).bitwise_or_(local.ge(held));
  return {local.masked_fill(away, 0), away};
}

at::Tensor composed_gather(const at::Tensor& self, const HeldPlaces& part) {
  const int64_t dim = part.dim;
  const int64_t held = self.dim() == 0 ? 1 : self.size(dim);
  const Places places = find_places(part, held);
  if (held == 0) {
    return at::zeros(part.index.sizes(), self.options());
  }
  return self.gather(dim, places.local).masked_fill_(places.away, 0);
}

at::Tensor composed_gather_backward(
    const at::Tensor& grad,
    const HeldPlaces& part,
    c10::IntArrayRef local_sizes) {
  const int64_t dim = part.dim;
  const int64_t held = local_sizes.empty() ? 1 : local_sizes[dim];
  const Places places = find_places(part, held);
  at::Tensor out = at::zeros(
      local_sizes, grad.options().dtype(at::toOpMathType(grad.scalar_type())));
  if (held > 0) {
    out.scatter_add_(
        dim,
        places.local,
        grad.to(out.scalar_type()).masked_fill(places.away, 0));
  }
  return out.to(grad.scalar_type());
}

}  // namespace

const GatherKernels& GatherKernels::composed() {
  static constexpr GatherKernels kernels{
      composed_gather, composed_gather_backward};
  return kernels;
}

}  // namespace tessera::detail
