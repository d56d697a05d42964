// Sparse distributed tensors made of entries, and sums and masks of them with
// dense ones.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors.h>
#include <ATen/ops/empty.h>

#include "dispatch/agreement.h"
#include "dispatch/tensor.h"
#include "ops/all_ops.h"
#include "ops/sparse_entries.h"

namespace tessera::detail {

namespace {

at::Tensor from_entries(
    int64_t sparse_dims,
    int64_t dense_dims,
    at::IntArrayRef size,
    const at::Tensor& indices,
    const at::Tensor& values,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory,
    std::optional<bool> is_coalesced) {
  constexpr const char* kCaller = "[sparse_coo_tensor] ";
  TORCH_CHECK(
      is_dtensor(indices) && is_dtensor(values),
      kCaller,
      "expected indices and values that are both distributed or both plain, "
      "got ",
      is_dtensor(indices) ? "plain values" : "plain indices");
  const Spec& of_values = *distributed_meta(values).spec;
  const Spec& of_indices = *distributed_meta(indices).spec;
  TORCH_CHECK_VALUE(
      of_indices.mesh == of_values.mesh,
      kCaller,
      "indices and values live on different meshes, ",
      of_indices.mesh.str(),
      " and ",
      of_values.mesh.str(),
      ": take full_tensor() of one and distribute that on the other's mesh");
  Placements placements;
  for (size_t m = 0; m < of_values.placements.size(); ++m) {
    const auto& placement = of_values.placements[m];
    TORCH_CHECK_NOT_IMPLEMENTED(
        of_indices.placements[m].is_replicate() &&
            (placement.is_replicate() ||
             (placement.is_shard() && placement.dim() > 0)),
        kCaller,
        "expected every rank to hold all entries, got indices on ",
        to_string(of_indices.placements),
        " and values on ",
        to_string(of_values.placements),
        ": redistribute them");
    placements.push_back(
        placement.is_shard() ? Shard(placement.dim() + sparse_dims - 1)
                             : placement);
  }
  auto spec = Spec::make(
      of_values.mesh, placements, size, dtype.value_or(of_values.dtype));
  const auto positions = of_values.mesh.local_positions();
  Shards shards;
  for (size_t i = 0; i < positions.size(); ++i) {
    shards.push_back(at::_sparse_coo_tensor_with_dims_and_tensors(
        sparse_dims,
        dense_dims,
        local_shape(size, of_values.mesh, placements, positions[i]),
        current_shards(indices)[i],
        current_shards(values)[i],
        at::TensorOptions()
            .dtype(dtype)
            .layout(layout)
            .device(device)
            .pinned_memory(pin_memory),
        is_coalesced));
  }
  return make_distributed(std::move(spec), std::move(shards));
}

// ATen has no sum of half entries on the CPU, but needs none where there are no
// entries: a rank without any would not throw.
void add_sparse(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  const at::Tensor self = (*stack)[first].toTensor();
  if (self.scalar_type() != at::kHalf || !self.is_cpu()) {
    return run_as_dense(op, stack);
  }
  run_agreed(
      distributed_meta(self).spec->mesh,
      c10::toString(op.operator_name()),
      [&] { run_as_dense(op, stack); });
}

// dense + sparse and the like, where the sparse one holds entries.
void add_entries(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  const auto& self = (*stack)[first].toTensor();
  const auto& other = (*stack)[first + 1].toTensor();
  if (is_dtensor(self) && is_dtensor(other) && other.is_sparse()) {
    const Spec& spec = *distributed_meta(self).spec;
    const auto layout = entry_layout(spec);
    if (!is_layout_of(layout, spec) &&
        is_layout_of(layout, *distributed_meta(other).spec) &&
        self.sizes() == other.sizes()) {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      (*stack)[first + 1] = bring_home(other, spec, layout);
    }
    if (self.is_sparse()) {
      return add_sparse(op, stack);
    }
  }
  run_as_dense(op, stack);
}

// The values of `self`, which is dense, where `mask` has entries.
at::Tensor sparse_mask(const at::Tensor& self, const at::Tensor& mask) {
  constexpr const char* kCaller = "[sparse_mask] ";
  TORCH_CHECK(
      is_dtensor(self) && is_dtensor(mask),
      kCaller,
      "expected a tensor and a mask that are both distributed, got a plain ",
      is_dtensor(self) ? "mask" : "tensor");
  TORCH_CHECK_VALUE(
      self.sizes() == mask.sizes() && !self.is_sparse() && mask.is_sparse(),
      kCaller,
      "expected a dense tensor and a sparse mask of the same shape, got "
      "shapes ",
      self.sizes(),
      " and ",
      mask.sizes());
  current_shards(self);
  const Spec& spec = *distributed_meta(self).spec;
  const auto layout = entry_layout(spec);
  const Spec& of_mask = *distributed_meta(mask).spec;
  const bool home =
      of_mask.mesh == spec.mesh && of_mask.placements == spec.placements;
  TORCH_CHECK_VALUE(
      home || is_layout_of(layout, of_mask),
      kCaller,
      "expected a mask that is laid out like the tensor, ",
      spec.str(),
      ", got ",
      of_mask.str());
  current_shards(mask);
  const auto entries = home ? entries_of(mask) : mask;
  Shards shards;
  for (size_t q = 0; q < layout.sources.size(); ++q) {
    const auto& shard = distributed_meta(entries).unchecked_shards()[q];
    check_rows_alone(shard, spec);
    const auto rows = shard._indices().select(0, 0);
    auto values = at::empty(
        shard._values().sizes(),
        shard_at(self, layout.sources[q][0]).options());
    for (const int64_t position : layout.sources[q]) {
      const auto range = rows_of(spec, position);
      const auto chosen = entries_in(rows, range);
      values.index_copy_(
          0,
          chosen,
          shard_at(self, position)
              .index_select(0, rows.index_select(0, chosen).sub(range.begin)));
    }
    shards.push_back(make_sparse(
        shard._indices(), values, shard.sizes(), shard.is_coalesced()));
  }
  return make_distributed(
      Spec::make(layout.mesh, layout.placements, spec.sizes, spec.dtype),
      std::move(shards));
}

}  // namespace

void register_sparse_arithmetic(OpRegistry& ops) {
  ops.sparse("_sparse_coo_tensor_with_dims_and_tensors", &from_entries);
  ops.sparse("sparse_mask", &sparse_mask);
  for (const char* name :
       {"add.Tensor", "add_.Tensor", "sub.Tensor", "sub_.Tensor"}) {
    ops.sparse(name, torch::CppFunction::makeFromBoxedFunction<&add_entries>());
  }
}

}  // namespace tessera::detail
