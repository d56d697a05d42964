// The distributed tensor: a plain c10::TensorImpl with the global sizes and no
// storage, whose spec and shards sit in a c10::BackendMeta. TensorImpl itself
// carries the meta through detach, shallow copies and set_data.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "comm/collectives.h"
#include "tessera/spec.h"

namespace tessera::detail {

// Immutable after it is made: tensors that are shallow copies share one.
struct DistributedMeta final : c10::BackendMeta {
  DistributedMeta(SpecPtr s, Shards parts, bool copy)
      : spec(std::move(s)), shards(std::move(parts)), copied_view(copy) {}

  const SpecPtr spec;
  // One for each of spec->mesh.local_positions().
  const Shards shards;
  // True for the result of a view op that had to be copied into another layout:
  // a write into it would not reach the base and is refused.
  const bool copied_view;
};

// The key set of distributed tensors whose shards are on `device`.
c10::DispatchKeySet distributed_keys(c10::DeviceType device);

inline bool is_dtensor(const at::Tensor& tensor) {
  return tensor.defined() &&
         tensor.unsafeGetTensorImpl()->key_set().has_backend(
             c10::BackendComponent::PrivateUse3Bit);
}

// Requires: is_dtensor(tensor).
inline const DistributedMeta& distributed_meta(const at::Tensor& tensor) {
  return *static_cast<const DistributedMeta*>(
      tensor.unsafeGetTensorImpl()->get_backend_meta());
}

// A distributed tensor that holds `shards`, laid out as `spec` says.
at::Tensor make_distributed(
    SpecPtr spec, Shards shards, bool copied_view = false);

// A new tensor with the same meta, shards shared.
at::Tensor make_alias(const at::Tensor& distributed);

// Turns `tensor` itself into `distributed`: members, registries and optimizers
// that hold it go on with it. Keeps requires_grad and the version counter.
void become(const at::Tensor& tensor, const at::Tensor& distributed);

// The local shard's shape as the layout has it, and an empty shard of it.
at::Tensor empty_shard(const Spec& spec, int64_t position, c10::Device device);

// Throws an internal error unless the shards fit the spec. For debug checks.
void check_shards(const Spec& spec, ShardsRef shards);

}  // namespace tessera::detail
