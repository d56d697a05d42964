#include "dispatch/tensor.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>

#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

constexpr const char* kNoStorage =
    "a distributed tensor has no storage of its own: use full_tensor() for the "
    "whole value, to_local() or shard(rank) for a rank's part";

c10::Device device_of(const Spec& spec, ShardsRef shards) {
  return shards.empty() ? c10::Device(spec.mesh.device_type())
                        : shards[0].device();
}

// Sparse shards make a sparse tensor.
c10::DispatchKeySet keys_of(const DistributedMeta& meta, c10::Device device) {
  const auto keys = distributed_keys(device.type());
  const bool sparse = !meta.shards.empty() && meta.shards[0].is_sparse();
  return sparse ? keys.remove(c10::DispatchKey::Dense)
                      .add(c10::DispatchKey::SparsePrivateUse3)
                : keys;
}

at::Tensor wrap_meta(
    c10::intrusive_ptr<DistributedMeta> meta, c10::Device device) {
  const Spec& spec = *meta->spec;
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      keys_of(*meta, device), c10::scalarTypeToTypeMeta(spec.dtype), device);
  impl->set_sizes_and_strides(spec.sizes, spec.strides);
  impl->release_storage_and_set_meta_custom_data_ptr_error_msg_(kNoStorage);
  impl->set_backend_meta(std::move(meta));
  return at::Tensor(std::move(impl));
}

}  // namespace

c10::DispatchKeySet distributed_keys(c10::DeviceType device) {
  // Autograd keys are added by TensorImpl itself, unless in inference mode.
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse3);
  switch (device) {
    case c10::DeviceType::CUDA:
      return keys.add(c10::DispatchKey::AutocastCUDA);
    case c10::DeviceType::CPU:
    case c10::DeviceType::Meta:
      return keys.add(c10::DispatchKey::AutocastCPU);
    default:
      return keys;
  }
}

at::Tensor make_distributed(SpecPtr spec, Shards shards, CopiedAt copied_at) {
  const auto device = device_of(*spec, shards);
  return wrap_meta(
      c10::make_intrusive<DistributedMeta>(
          std::move(spec), std::move(shards), copied_at),
      device);
}

at::Tensor make_distributed(
    SpecPtr spec, at::Tensor shard, CopiedAt copied_at) {
  const auto device = shard.device();
  return wrap_meta(
      c10::make_intrusive<DistributedMeta>(
          std::move(spec), std::move(shard), copied_at),
      device);
}

uint32_t version_of(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  // Inference tensors do not count.
  return impl->is_inference() ? 0 : impl->version_counter().current_version();
}

void check_current(const at::Tensor& distributed) {
  const auto& copied_at = distributed_meta(distributed).copied_at;
  TORCH_CHECK(
      !copied_at.has_value() || *copied_at == version_of(distributed),
      "a view of a distributed tensor had to be copied into another layout, "
      "and "
      "its base has been written since: the copy is out of date. Take the view "
      "again after the write");
}

void check_writable(const at::Tensor& distributed, std::string_view caller) {
  TORCH_CHECK(
      !distributed_meta(distributed).copied_at.has_value(),
      "[",
      caller,
      "] writes into a view that had to be copied into another layout, so that "
      "the write would not reach its base. Redistribute the base first such "
      "that the viewed dimension is not sharded, or write into the base");
}

at::Tensor make_alias(const at::Tensor& distributed) {
  auto meta = c10::intrusive_ptr<DistributedMeta>::reclaim_copy(
      static_cast<DistributedMeta*>(
          distributed.unsafeGetTensorImpl()->get_backend_meta()));
  return wrap_meta(std::move(meta), distributed.device());
}

void become(const at::Tensor& tensor, const at::Tensor& distributed) {
  c10::NoGradGuard no_grad;
  const bool requires_grad = tensor.requires_grad();
  tensor.unsafeGetTensorImpl()->shallow_copy_from(
      distributed.getIntrusivePtr());
  if (requires_grad && !tensor.requires_grad()) {
    tensor.requires_grad_(true);
  }
}

at::Tensor cut_shard(
    const at::Tensor& value,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    int64_t position) {
  auto part = value;
  for (int64_t d = 0; d < value.dim(); ++d) {
    const auto range =
        local_range(value.size(d), d, mesh, placements, position);
    part = part.narrow(d, range.begin, range.size);
  }
  return part;
}

at::Tensor empty_shard(const Spec& spec, int64_t position, c10::Device device) {
  const auto shape =
      local_shape(spec.sizes, spec.mesh, spec.placements, position);
  return at::empty_strided(
      shape,
      local_strides(shape, spec.strides),
      at::TensorOptions().dtype(spec.dtype).device(device));
}

void check_shards(const Spec& spec, ShardsRef shards) {
  const auto positions = spec.mesh.local_positions();
  TORCH_INTERNAL_ASSERT(
      shards.size() == positions.size(),
      "expected one shard a local position, got ",
      shards.size(),
      " for ",
      positions.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto expected =
        local_shape(spec.sizes, spec.mesh, spec.placements, positions[i]);
    TORCH_INTERNAL_ASSERT(
        shards[i].sizes() == SizesRef(expected) &&
            shards[i].scalar_type() == spec.dtype,
        "the shard at position ",
        positions[i],
        " is ",
        shards[i].scalar_type(),
        shards[i].sizes(),
        " but the layout ",
        spec.str(),
        " wants ",
        SizesRef(expected));
  }
}

}  // namespace tessera::detail
