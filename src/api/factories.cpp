#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>

#include "dispatch/tensor.h"
#include "tessera/distribute.h"
#include "tessera/shard_math.h"

namespace tessera {

namespace {

DTensor make_empty(
    const char* caller,
    SizesRef shape,
    const DeviceMesh& mesh,
    PlacementsRef given,
    const at::TensorOptions& options) {
  for (const int64_t size : shape) {
    TORCH_CHECK_VALUE(
        size >= 0, "[", caller, "] sizes must not be negative, got ", shape);
  }
  const Placements replicated(mesh.ndim(), Replicate());
  const auto placements = normalize_placements(
      given.empty() ? PlacementsRef(replicated) : given,
      mesh,
      static_cast<int64_t>(shape.size()),
      caller);
  for (const auto& placement : placements) {
    TORCH_CHECK_VALUE(
        !placement.is_partial(),
        "[",
        caller,
        "] expected Shard or Replicate placements, got ",
        to_string(placements));
  }
  const auto dtype = options.has_dtype()
                         ? c10::typeMetaToScalarType(options.dtype())
                         : c10::get_default_dtype_as_scalartype();
  auto spec = Spec::make(mesh, placements, shape, dtype);
  const auto device =
      options.has_device() ? options.device() : c10::Device(mesh.device_type());
  detail::Shards shards;
  for (const int64_t position : mesh.local_positions()) {
    shards.push_back(detail::empty_shard(*spec, position, device));
  }
  return DTensor(detail::make_distributed(std::move(spec), std::move(shards)));
}

// Fills without a record, then asks for gradients if the options do.
template <typename Fill>
DTensor filled(
    DTensor tensor, const at::TensorOptions& options, const Fill& fill) {
  {
    c10::NoGradGuard no_grad;
    fill(tensor);
  }
  tensor.requires_grad_(options.requires_grad());
  return tensor;
}

}  // namespace

DTensor empty(
    SizesRef shape,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const at::TensorOptions& options) {
  return filled(
      make_empty("empty", shape, mesh, placements, options),
      options,
      [](const at::Tensor&) {});
}

DTensor full(
    SizesRef shape,
    const at::Scalar& value,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const at::TensorOptions& options) {
  return filled(
      make_empty("full", shape, mesh, placements, options),
      options,
      [&](const at::Tensor& tensor) { tensor.fill_(value); });
}

DTensor zeros(
    SizesRef shape,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const at::TensorOptions& options) {
  return filled(
      make_empty("zeros", shape, mesh, placements, options),
      options,
      [](const at::Tensor& tensor) { tensor.zero_(); });
}

DTensor ones(
    SizesRef shape,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const at::TensorOptions& options) {
  return filled(
      make_empty("ones", shape, mesh, placements, options),
      options,
      [](const at::Tensor& tensor) { tensor.fill_(1); });
}

DTensor rand(
    SizesRef shape,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const at::TensorOptions& options) {
  return filled(
      make_empty("rand", shape, mesh, placements, options),
      options,
      [](const at::Tensor& tensor) { tensor.uniform_(0, 1); });
}

DTensor randn(
    SizesRef shape,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const at::TensorOptions& options) {
  return filled(
      make_empty("randn", shape, mesh, placements, options),
      options,
      [](const at::Tensor& tensor) { tensor.normal_(0, 1); });
}

void manual_seed(uint64_t seed) { at::manual_seed(seed); }

}  // namespace tessera
