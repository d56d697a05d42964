// layer_norm of a pending sum, which its formula saves: the sum is reduced
// once, before, for both passes.
#include <ATen/core/Tensor.h>
#include <ATen/ops/layer_norm_native.h>

#include <algorithm>
#include <optional>

#include "dispatch/autograd.h"
#include "dispatch/own_op.h"
#include "dispatch/tensor.h"
#include "ops/all_ops.h"

namespace tessera::detail {
namespace {

// Where a pending input is wanted: on a mesh of one dimension rows stay with
// their ranks, by the first dimension, if it is not normalized.
at::Tensor reduced_once(
    const at::Tensor& input, size_t normalized, const char* cause) {
  if (!is_dtensor(input) || !records(input)) {
    return input;
  }
  const Spec& spec = *distributed_meta(input).spec;
  if (std::none_of(
          spec.placements.begin(),
          spec.placements.end(),
          [](const Placement& placement) { return placement.is_partial(); })) {
    return input;
  }
  const bool has_rows =
      spec.mesh.ndim() == 1 && input.dim() > static_cast<int64_t>(normalized);
  Placements to;
  for (const Placement& placement : spec.placements) {
    to.push_back(
        !placement.is_partial() ? placement
        : has_rows              ? Placement(Shard(0))
                                : Placement(Replicate()));
  }
  return redistribute(input, to, cause);
}

at::Tensor layer_norm(
    const at::Tensor& input,
    c10::SymIntArrayRef normalized_shape,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps,
    bool cudnn_enabled) {
  return at::native::layer_norm_symint(
      reduced_once(input, normalized_shape.size(), "aten::layer_norm"),
      normalized_shape,
      weight,
      bias,
      eps,
      cudnn_enabled);
}

}  // namespace

void register_layer_norm(OpRegistry& ops) {
  ops.above_autograd("layer_norm", TORCH_FN(layer_norm));
}

}  // namespace tessera::detail
