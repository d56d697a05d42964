// new_zeros and new_empty inside derivative formulas and composite ops, which
// then write into what they made: it is laid out as the tensor that it is made
// from, where the sizes agree, so that the write need not gather what is
// written. Elsewhere a new tensor of another shape is replicated. And
// new_empty_strided for the gradient of a tensor of which a part was written:
// the part can be written in it, too.
#include <ATen/TensorGeometry.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/new_empty.h>
#include <ATen/ops/new_zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/tensor.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "dispatch/composite.h"
#include "dispatch/formula.h"
#include "dispatch/run_by_rule.h"
#include "dispatch/tensor.h"
#include "ops/all_ops.h"
#include "ops/kept_shards.h"
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
  const int64_t batch = common_dims(self.sizes(), sizes);
  const auto kept = kept_shards(
      distributed_meta(self).spec->placements,
      [&](int64_t dim) { return dim < batch; });
  const bool sharded =
      std::any_of(kept.begin(), kept.end(), [](const Placement& p) {
        return p.is_shard();
      });
  return sharded ? std::optional(kept) : std::nullopt;
}

// A new tensor of these placements, on the mesh of `self`.
template <at::Tensor (at::Tensor::*kMake)(at::IntArrayRef, at::TensorOptions)
              const>
at::Tensor make_placed(
    const at::Tensor& self,
    SizesRef sizes,
    const Placements& placements,
    const MadeAs& made) {
  const Spec& spec = *distributed_meta(self).spec;
  Shards shards;
  const auto& given = current_shards(self);
  const auto dtype = made.dtype.value_or(spec.dtype);
  for (size_t i = 0; i < given.size(); ++i) {
    const Sizes local = local_shape(
        sizes, spec.mesh, placements, spec.mesh.local_positions()[i]);
    shards.push_back((given[i].*kMake)(local, made.options().dtype(dtype)));
  }
  return make_distributed(
      Spec::make(spec.mesh, placements, sizes, dtype), std::move(shards));
}

// new_zeros and new_empty.
template <
    at::Tensor (at::Tensor::*kMake)(at::IntArrayRef, at::TensorOptions) const,
    const char* kName>
at::Tensor make(
    const at::Tensor& self,
    c10::SymIntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory) {
  static const OpInfo& op = aten_op(kName);
  const Sizes sizes(C10_AS_INTARRAYREF_SLOW(size));
  const MadeAs made{dtype, layout, device, pin_memory};
  if (const auto placements = followed(self, sizes, made)) {
    return make_placed<kMake>(self, sizes, *placements, made);
  }
  return run_by_rule(
             op,
             self,
             std::vector<int64_t>(sizes.begin(), sizes.end()),
             dtype,
             layout,
             device,
             pin_memory)[0]
      .toTensor();
}

constexpr char kNewZeros[] = "new_zeros";
constexpr char kNewEmpty[] = "new_empty";

// The view through which a tensor was written, whose gradient is at work; or
// nullptr.
const torch::autograd::CopySlices* written_view() {
  return dynamic_cast<const torch::autograd::CopySlices*>(
      torch::autograd::get_current_node().get());
}

// Whether the view has all of dimension `dim` of its base.
bool has_whole(const torch::autograd::CopySlices& slices, int64_t dim) {
  const auto& [base, view] = std::tie(slices.base, slices.view);
  if (base.dim() == view.dim()) {
    return base.size(dim) == view.size(dim) &&
           base.stride(dim) == view.stride(dim);
  }
  // Dimensions were dropped or joined: those before the first are as they were.
  return dim < common_dims(base.sizes(), view.sizes()) &&
         dim < common_dims(base.strides(), view.strides());
}

// ATen copies the gradient into a tensor of its own and writes the view's part
// there. Where the gradient is sharded on a dimension that the view has parts
// of, that part would be a copy.
at::Tensor new_empty_strided(
    const at::Tensor& self,
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory) {
  static const OpInfo& op = aten_op("new_empty_strided");
  const Sizes sizes(C10_AS_INTARRAYREF_SLOW(size));
  const auto* slices = written_view();
  if (slices != nullptr && is_dtensor(self) && self.sizes() == sizes) {
    const auto& given = distributed_meta(self).spec->placements;
    const auto stays = [&](int64_t dim) { return has_whole(*slices, dim); };
    const bool takes_parts =
        std::any_of(given.begin(), given.end(), [&](const Placement& p) {
          return p.is_shard() && !stays(p.dim());
        });
    if (takes_parts) {
      return make_placed<&at::Tensor::new_empty>(
          self,
          sizes,
          kept_shards(given, stays),
          {dtype, layout, device, pin_memory});
    }
  }
  const Sizes strides(C10_AS_INTARRAYREF_SLOW(stride));
  for (size_t d = 0; d < strides.size() && d < sizes.size(); ++d) {
    TORCH_CHECK(
        strides[d] >= 0 || sizes[d] < 2,
        "[new_empty_strided] expected strides that are not negative, but got ",
        SizesRef(strides));
  }
  return run_by_rule(
             op,
             self,
             std::vector<int64_t>(sizes.begin(), sizes.end()),
             std::vector<int64_t>(strides.begin(), strides.end()),
             dtype,
             layout,
             device,
             pin_memory)[0]
      .toTensor();
}

}  // namespace

void register_made_in_layout(OpRegistry& ops) {
  ops.composed(kNewZeros, TORCH_FN((make<&at::Tensor::new_zeros, kNewZeros>)));
  ops.composed(kNewEmpty, TORCH_FN((make<&at::Tensor::new_empty, kNewEmpty>)));
  ops.composed("new_empty_strided", TORCH_FN(new_empty_strided));
}

}  // namespace tessera::detail
