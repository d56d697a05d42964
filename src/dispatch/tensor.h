// The distributed tensor: a plain c10::TensorImpl with the global sizes and no
// storage, whose spec and shards sit in a c10::BackendMeta. TensorImpl itself
// carries the meta through detach, shallow copies and set_data.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <optional>
#include <string_view>

#include "comm/collectives.h"
#include "tessera/spec.h"

namespace tessera::detail {

// Set on the result of a view op that had to be copied into another layout: the
// version of its base at that time. A write into the copy would not reach the
// base and is refused; after a write into the base the copy is out of date and
// may not be read.
using CopiedAt = std::optional<uint32_t>;

// Immutable after it is made: tensors that are shallow copies share one.
struct DistributedMeta final : c10::BackendMeta {
  DistributedMeta(SpecPtr s, Shards parts, CopiedAt copied)
      : spec(std::move(s)), shards(std::move(parts)), copied_at(copied) {}
  DistributedMeta(SpecPtr s, at::Tensor part, CopiedAt copied)
      : spec(std::move(s)), shards(only(std::move(part))), copied_at(copied) {}

  const SpecPtr spec;
  // One for each of spec->mesh.local_positions().
  const Shards shards;
  const CopiedAt copied_at;

 private:
  static Shards only(at::Tensor part) {
    Shards shards;
    shards.push_back(std::move(part));
    return shards;
  }
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
    SpecPtr spec, Shards shards, CopiedAt copied_at = std::nullopt);
// As above, of the one shard that lives here.
at::Tensor make_distributed(
    SpecPtr spec, at::Tensor shard, CopiedAt copied_at = std::nullopt);

// How often a tensor (or what it is a view of) has been written.
uint32_t version_of(const at::Tensor& tensor);

// Throws c10::Error if the tensor is a copied view that is out of date.
void check_current(const at::Tensor& distributed);
// Throws c10::Error, tagged with `caller`, if it is a copied view at all.
void check_writable(const at::Tensor& distributed, std::string_view caller);

// A new tensor with the same meta, shards shared.
at::Tensor make_alias(const at::Tensor& distributed);

// Turns `tensor` itself into `distributed`: members, registries and optimizers
// that hold it go on with it. Keeps requires_grad and the version counter.
void become(const at::Tensor& tensor, const at::Tensor& distributed);

// The part of a plain tensor that `position` holds under `placements`, as a
// view of it.
at::Tensor cut_shard(
    const at::Tensor& value,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    int64_t position);

// An empty shard of the shape that the layout gives `position`.
at::Tensor empty_shard(const Spec& spec, int64_t position, c10::Device device);

// Throws an internal error unless the shards fit the spec. For debug checks.
void check_shards(const Spec& spec, ShardsRef shards);

}  // namespace tessera::detail
