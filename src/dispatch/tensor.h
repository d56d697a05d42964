// The distributed tensor: a plain c10::TensorImpl with the global sizes and no
// storage, whose spec and shards sit in a c10::BackendMeta. TensorImpl itself
// carries the meta through detach, shallow copies and set_data.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/macros/Macros.h>

#include <atomic>
#include <optional>
#include <string_view>

#include "comm/collectives.h"
#include "dispatch/recycled.h"
#include "tessera/spec.h"

namespace tessera::detail {

struct DistributedMeta;
using MetaPtr = c10::intrusive_ptr<DistributedMeta>;

// What a view remembers of the tensor that it views.
struct ViewOrigin {
  // Set on the result of a view op that had to be copied into another layout:
  // how often its base had been written at that time. A write into the copy
  // would not reach the base and is refused; after a write into the base the
  // copy is out of date and may not be read.
  std::optional<uint32_t> copied_at = std::nullopt;
  // What counts the writes of a base that was made in inference mode, where
  // torch counts none: the meta of the tensor that is no view itself.
  MetaPtr base = {};
};

// Immutable after it is made, but for what it counts and keeps: tensors that
// are shallow copies share one.
struct DistributedMeta final : c10::BackendMeta {
  DistributedMeta(SpecPtr s, Shards parts, const ViewOrigin& from)
      : spec(std::move(s)), shards_(std::move(parts)), origin_(from) {}
  DistributedMeta(SpecPtr s, at::Tensor part, const ViewOrigin& from)
      : spec(std::move(s)), shards_(only(std::move(part))), origin_(from) {}
  [[gnu::hot]] ~DistributedMeta() override;

  static void* operator new(size_t) {
    return RecycledBlocks<sizeof(DistributedMeta)>::allocate();
  }
  static void operator delete(void* block) {
    RecycledBlocks<sizeof(DistributedMeta)>::free(block);
  }

  const SpecPtr spec;

  size_t shard_count() const { return shards_.size(); }
  // Whether this is a view that had to be copied into another layout.
  bool is_copied_view() const { return origin_.copied_at.has_value(); }

  // The shards, one for each of spec->mesh.local_positions(), by whoever has
  // seen to it that they are current. All others take current_shards().
  const Shards& unchecked_shards() const { return shards_; }

 private:
  static Shards only(at::Tensor part) {
    Shards shards;
    shards.push_back(std::move(part));
    return shards;
  }
  const DistributedMeta& counter() const {
    return origin_.base ? *origin_.base : *this;
  }

  const Shards shards_;
  const ViewOrigin origin_;
  // Writes into a tensor of inference mode and its views.
  mutable std::atomic<uint32_t> writes_ = 0;
  // What to_local() handed out; see handed_out_shard.
  mutable std::atomic<c10::TensorImpl*> handed_out_ = nullptr;

  friend uint32_t version_of(const at::Tensor& distributed);
  friend bool is_current(const at::Tensor& distributed);
  friend void begin_write(
      const at::Tensor& distributed, std::string_view caller);
  friend ViewOrigin view_origin(const at::Tensor& base, bool copied);
  friend at::Tensor hand_out_shard(const at::Tensor& distributed);
  friend at::Tensor handed_out_shard(const at::Tensor& distributed);
};

// The key set of distributed tensors whose shards are on `device`.
[[gnu::hot]] c10::DispatchKeySet distributed_keys(c10::DeviceType device);

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
[[gnu::hot]] at::Tensor make_distributed(
    SpecPtr spec, Shards shards, const ViewOrigin& origin = {});
// As above, of the one shard that lives here.
[[gnu::hot]] at::Tensor make_distributed(
    SpecPtr spec, at::Tensor shard, const ViewOrigin& origin = {});

// How often a tensor (or what it is a view of) has been written.
uint32_t version_of(const at::Tensor& distributed);

// Whether the tensor is anything but a copied view that is out of date.
bool is_current(const at::Tensor& distributed);
// Throws c10::Error unless it is.
void check_current(const at::Tensor& distributed);

// The shards that live here, one for each of the mesh's local_positions().
// Throws c10::Error if the tensor is a copied view that is out of date.
inline const Shards& current_shards(const at::Tensor& distributed) {
  const auto& meta = distributed_meta(distributed);
  if (meta.is_copied_view()) {
    check_current(distributed);
  }
  return meta.unchecked_shards();
}

// To be called before the shards are written. Throws c10::Error, tagged with
// `caller`, if the tensor is a copied view, and counts the write where torch
// does not.
void begin_write(const at::Tensor& distributed, std::string_view caller);

// What a view of `base` remembers; `copied`: it holds a copy.
ViewOrigin view_origin(const at::Tensor& base, bool copied);

// While one is alive, the tensors made in this thread are normal ones if `base`
// is, and inference tensors if it is one, whether or not inference mode is on:
// a view of a tensor is what the tensor is, and so is what takes its place.
class MadeLike {
 public:
  explicit MadeLike(const at::Tensor& base);
  ~MadeLike();
  C10_DISABLE_COPY_AND_ASSIGN(MadeLike);

 private:
  bool changed_ = false;
};

// A new tensor with the same meta, shards shared.
at::Tensor make_alias(const at::Tensor& distributed);

// The view itself, said to begin `offset` elements behind the beginning of
// `base`, as it does on one device.
inline at::Tensor placed_view(
    at::Tensor view, const at::Tensor& base, int64_t offset = 0) {
  const int64_t begin = base.unsafeGetTensorImpl()->storage_offset() + offset;
  if (C10_UNLIKELY(begin != 0)) {
    view.unsafeGetTensorImpl()->set_storage_offset(begin);
  }
  return view;
}

// A plain tensor for users, with the memory of a shard but sizes, strides and
// autograd state of its own. It counts its writes as `distributed` does. Of a
// term that is held in float, a copy in the tensor's dtype.
at::Tensor shard_alias(const at::Tensor& shard, const at::Tensor& distributed);

// The same, of the one shard that lives here, kept where none is kept yet.
at::Tensor hand_out_shard(const at::Tensor& distributed);

// Whether an alias of a strided shard is still like it.
inline bool is_like(c10::TensorImpl& alias, c10::TensorImpl& shard) {
  const auto& one = alias.sizes_and_strides();
  const auto& other = shard.sizes_and_strides();
  bool same = alias.unsafe_storage().unsafeGetStorageImpl() ==
                  shard.unsafe_storage().unsafeGetStorageImpl() &&
              alias.key_set() == shard.key_set() &&
              alias.dtype() == shard.dtype() &&
              alias.storage_offset() == shard.storage_offset() &&
              one.size() == other.size();
  for (size_t d = 0; same && d < one.size(); ++d) {
    same = one.size_at_unchecked(d) == other.size_at_unchecked(d) &&
           one.stride_at_unchecked(d) == other.stride_at_unchecked(d);
  }
  return same && alias.autograd_meta() == nullptr;
}

// What to_local() hands out: as long as nobody changes the alias, the one that
// is kept. Every call compares, and nothing else.
inline at::Tensor handed_out_shard(const at::Tensor& distributed) {
  const auto& meta = distributed_meta(distributed);
  auto* known = meta.handed_out_.load(std::memory_order_acquire);
  if (C10_LIKELY(
          known != nullptr && !meta.is_copied_view() &&
          is_like(*known, *meta.unchecked_shards()[0].unsafeGetTensorImpl()))) {
    return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(known));
  }
  return hand_out_shard(distributed);
}

// Whether a shard lies in memory as the strides of the whole say: its
// dimensions in the same order, and dense where the whole is. Views of the
// whole are then views of shards. True of what has no strides.
bool follows_strides(const at::Tensor& shard, const Spec& spec);

// The shard itself where it does, otherwise a copy that does.
at::Tensor with_strides_of(const Spec& spec, at::Tensor shard);

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
