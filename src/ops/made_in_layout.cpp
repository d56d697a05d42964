// new_zeros and new_empty inside derivative formulas and composite ops, which
// then write into what they made: it is laid out as the tensor that it is made
// from, where the sizes agree, so that the write need not gather what is
// written. Elsewhere a new tensor of another shape is replicated.
#include <ATen/core/Tensor.h>
#include <ATen/ops/new_empty.h>
#include <ATen/ops/new_zeros.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "dispatch/composite.h"
#include "dispatch/formula.h"
#include "dispatch/run_by_rule.h"
#include "dispatch/tensor.h"
#include "ops/all_ops.h"
#include "tessera/shard_math.h"

namespace tessera::detail {
namespace {

// What a factory is given besides the tensor and the sizes.
struct MadeAs {
  std::optional<at::ScalarType> dtype;
  std::optional<at::Layout> layout;
  std::optional<at::Device> device;
  std::optional<bool> pin_memory;

  at::TensorOptions options() const {
    return at::TensorOptions().dtype(dtype).layout(layout).device(device);
  }
};

// How many dimensions two tensors have in common before the first that differs.
int64_t common_dims(SizesRef a, SizesRef b) {
  const auto differing = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return differing.first - a.begin();
}

// The placements of `self` that a tensor of these sizes can have; nullopt where
// it is to be made by the rule. Dimensions before all that differ are those of
// the batch; others may be written in parts, which shards would not take.
std::optional<Placements> followed(
    const at::Tensor& self, SizesRef sizes, const MadeAs& made) {
  if (!(in_derivative_formula() || in_composite()) || !is_dtensor(self) ||
      self.dim() != static_cast<int64_t>(sizes.size()) ||
      made.layout.value_or(at::kStrided) != at::kStrided ||
      made.device.value_or(self.device()) != self.device() ||
      made.pin_memory.value_or(false)) {
    return std::nullopt;
  }
  Placements placements = distributed_meta(self).spec->placements;
  const int64_t batch = common_dims(self.sizes(), sizes);
  bool sharded = false;
  for (auto& placement : placements) {
    if (!placement.is_shard() || placement.dim() >= batch) {
      placement = Replicate();
    }
    sharded |= placement.is_shard();
  }
  return sharded ? std::optional(placements) : std::nullopt;
}

template <at::Tensor (at::Tensor::*kMake)(at::IntArrayRef, at::TensorOptions)
              const>
at::Tensor make(
    const OpInfo& op,
    const at::Tensor& self,
    c10::SymIntArrayRef size,
    const MadeAs& made) {
  const Sizes sizes(C10_AS_INTARRAYREF_SLOW(size));
  const auto placements = followed(self, sizes, made);
  if (!placements.has_value()) {
    return run_by_rule(
               op,
               self,
               std::vector<int64_t>(sizes.begin(), sizes.end()),
               made.dtype,
               made.layout,
               made.device,
               made.pin_memory)[0]
        .toTensor();
  }
  const Spec& spec = *distributed_meta(self).spec;
  Shards shards;
  const auto& given = current_shards(self);
  for (size_t i = 0; i < given.size(); ++i) {
    const Sizes local = local_shape(
        sizes, spec.mesh, *placements, spec.mesh.local_positions()[i]);
    shards.push_back((given[i].*kMake)(local, made.options()));
  }
  return make_distributed(
      Spec::make(
          spec.mesh, *placements, sizes, made.dtype.value_or(spec.dtype)),
      std::move(shards));
}

at::Tensor new_zeros(
    const at::Tensor& self,
    c10::SymIntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory) {
  static const OpInfo& op = aten_op("new_zeros");
  return make<&at::Tensor::new_zeros>(
      op, self, size, {dtype, layout, device, pin_memory});
}

at::Tensor new_empty(
    const at::Tensor& self,
    c10::SymIntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory) {
  static const OpInfo& op = aten_op("new_empty");
  return make<&at::Tensor::new_empty>(
      op, self, size, {dtype, layout, device, pin_memory});
}

}  // namespace

void register_made_in_layout(OpRegistry& ops) {
  ops.composed("new_zeros", TORCH_FN(new_zeros));
  ops.composed("new_empty", TORCH_FN(new_empty));
}

}  // namespace tessera::detail
