// linear and matmul of a batch of more than one dimension. ATen makes rows of
// the leading dimensions; rows stay on their ranks only if the first of those
// dimensions is the sharded one, so that it is made the first.
#include <ATen/core/Tensor.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/matmul_native.h>

#include <optional>

#include "dispatch/tensor.h"
#include "ops/all_ops.h"

namespace tessera::detail {
namespace {

// The leading dimension that is sharded, if it is one and not the first.
std::optional<int64_t> sharded_behind_first(const at::Tensor& batch) {
  if (!is_dtensor(batch) || batch.dim() < 3) {
    return std::nullopt;
  }
  const Spec& spec = *distributed_meta(batch).spec;
  std::optional<int64_t> found;
  for (int64_t m = 0; m < spec.mesh.ndim(); ++m) {
    const Placement& placement = spec.placements[m];
    if (!placement.is_shard() || placement.dim() == batch.dim() - 1 ||
        spec.mesh.size(m) == 1) {
      continue;
    }
    if (placement.dim() == 0 ||
        found.value_or(placement.dim()) != placement.dim()) {
      return std::nullopt;
    }
    found = placement.dim();
  }
  return found;
}

at::Tensor linear(
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias) {
  if (const auto dim = sharded_behind_first(input)) {
    return at::linear(input.transpose(0, *dim), weight, bias)
        .transpose(0, *dim)
        .contiguous();
  }
  return at::native::linear(input, weight, bias);
}

at::Tensor matmul(const at::Tensor& self, const at::Tensor& other) {
  if (other.dim() == 2) {
    if (const auto dim = sharded_behind_first(self)) {
      return at::matmul(self.transpose(0, *dim), other)
          .transpose(0, *dim)
          .contiguous();
    }
  }
  return at::native::matmul(self, other);
}

}  // namespace

void register_linear(OpRegistry& ops) {
  // In inference mode the first is asked, otherwise the second.
  ops.composed("linear", TORCH_FN(linear));
  ops.above_autograd("linear", TORCH_FN(linear));
  ops.composed("matmul", TORCH_FN(matmul));
  ops.above_autograd("matmul", TORCH_FN(matmul));
}

}  // namespace tessera::detail
