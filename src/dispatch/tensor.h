// The distributed tensor: a plain c10::TensorImpl with the global sizes and no
// storage, whose spec and shards sit in a c10::BackendMeta. TensorImpl itself
// carries the meta through detach, shallow copies and set_data.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/macros/Macros.h>

#include <atomic>
#include <string_view>

#include "comm/collectives.h"
#include "dispatch/recycled.h"
#include "tessera/spec.h"

namespace tessera::detail {

struct DistributedMeta;
using MetaPtr = c10::intrusive_ptr<DistributedMeta>;

// A part of a tensor in memory of its own, which stands for a view that could
// not share memory with its base. copied_view.h has what there is to it.
class CopiedView : public c10::intrusive_ptr_target {
 public:
  // Makes the shards what the base holds now. `known` are those of the tensor
  // that asks: none as long as they were never made. Communicates as the view
  // op does, unless nobody has written the base since the last time.
  virtual void make_current(Shards& known) = 0;
  // Around a write into the shards. They throw c10::Error, tagged with
  // `caller`, where the copy cannot be put back.
  // `overwrites`: nobody reads them before all are written.
  virtual void begin_write(
      Shards& known, std::string_view caller, bool overwrites) = 0;
  virtual void end_write(std::string_view caller) = 0;
  // Instead of end_write, where the write failed: the copy is made again.
  virtual void abandon_write() = 0;
  // Whether the shards are there and what the base holds. Does not communicate.
  virtual bool is_current() const = 0;
  // How often the copy has changed.
  virtual uint64_t changes() const = 0;
};
using CopiedViewPtr = c10::intrusive_ptr<CopiedView>;

// Where the memory of a view comes from.
struct ViewOrigin {
  // The meta of the tensor whose memory the view shares: the one that counts
  // the writes to it. Null for a tensor with memory of its own.
  MetaPtr memory = {};
  // Set where that memory is a copy of a part of another tensor's.
  CopiedViewPtr copy = {};
};

// Immutable after it is made, but for what it counts and keeps: tensors that
// are shallow copies share one. The shards of a copied view come when it is
// first read (copied_view.h).
struct DistributedMeta final : c10::BackendMeta {
  DistributedMeta(SpecPtr s, Shards parts, ViewOrigin from);
  DistributedMeta(SpecPtr s, at::Tensor part, ViewOrigin from);
  [[gnu::hot]] ~DistributedMeta() override;

  static void* operator new(size_t) {
    return RecycledBlocks<sizeof(DistributedMeta)>::allocate();
  }
  static void operator delete(void* block) {
    RecycledBlocks<sizeof(DistributedMeta)>::free(block);
  }

  const SpecPtr spec;

  // How many ranks that live here hold a shard.
  size_t shard_count() const {
    return C10_UNLIKELY(is_copied_view()) ? spec->mesh.local_positions().size()
                                          : shards_.size();
  }
  // Whether the memory is a copy of a part of another tensor's.
  bool is_copied_view() const { return origin_.copy.defined(); }
  // Requires: is_copied_view().
  CopiedView& copied_view() const { return *origin_.copy; }
  // Makes the shards of a copied view current. Requires: it is one.
  void make_current() const { origin_.copy->make_current(shards_); }
  void begin_write_of_copy(std::string_view caller, bool overwrites) const {
    origin_.copy->begin_write(shards_, caller, overwrites);
  }

  // The shards, one for each of spec->mesh.local_positions(), by whoever has
  // seen to it that they are current. All others take current_shards().
  const Shards& unchecked_shards() const { return shards_; }

  // The meta that counts the writes to this memory.
  const DistributedMeta& memory() const {
    return origin_.memory ? *origin_.memory : *this;
  }
  void count_write() const {
    memory().writes_.fetch_add(1, std::memory_order_relaxed);
  }
  // How often the memory has been written: through distributed tensors, and
  // through plain ones that share it and count their writes.
  uint64_t writes() const;
  // To be called when a plain tensor with this counter shares the memory.
  void count_writes_of(const c10::VariableVersion& version) const;
  // The same for the tensor's own counter, once somebody has to know: the
  // caller's plain tensor, which became the shard, shares it.
  void shares_own_counter() const { memory().shares_counter_ = true; }
  void count_own_writes(const c10::VariableVersion& version) const {
    if (memory().shares_counter_) {
      count_writes_of(version);
    }
  }

  // Whether nobody but the holder of `meta` can reach its memory.
  static bool is_unreachable(const MetaPtr& meta);

 private:
  // The counters of plain tensors that share the memory.
  struct PlainAliases;

  static Shards only(at::Tensor part) {
    Shards shards;
    shards.push_back(std::move(part));
    return shards;
  }

  mutable Shards shards_;
  const ViewOrigin origin_;
  mutable std::atomic<uint64_t> writes_ = 0;
  mutable std::atomic<PlainAliases*> plain_aliases_ = nullptr;
  mutable bool shares_counter_ = false;
  // What to_local() handed out; see handed_out_shard.
  mutable std::atomic<c10::TensorImpl*> handed_out_ = nullptr;

  friend ViewOrigin view_origin(const at::Tensor& base);
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
    SpecPtr spec, Shards shards, ViewOrigin origin = {});
// As above, of the one shard that lives here.
[[gnu::hot]] at::Tensor make_distributed(
    SpecPtr spec, at::Tensor shard, ViewOrigin origin = {});

// A tensor that holds `meta`, whose shards are on `device`; an inference tensor
// only where `inference`, and inference mode is on.
[[gnu::hot]] at::Tensor wrap_meta(
    c10::intrusive_ptr<c10::BackendMeta> meta,
    c10::Device device,
    bool inference);

// The shards that live here, one for each of the mesh's local_positions(). Of a
// copied view, made current first: communicates then.
inline const Shards& current_shards(const at::Tensor& distributed) {
  const auto& meta = distributed_meta(distributed);
  if (C10_UNLIKELY(meta.is_copied_view())) {
    meta.make_current();
  }
  return meta.unchecked_shards();
}

// Whether the tensor has its shards and they are what it stands for: false for
// copied views that communicate when they are read.
inline bool is_current(const at::Tensor& distributed) {
  const auto& meta = distributed_meta(distributed);
  return !meta.is_copied_view() || meta.copied_view().is_current();
}

// To be called around a write into the shards. A copied view is made current
// first, unless the write `overwrites` all of it, and put back into its base
// after. Throws c10::Error, tagged with
// `caller`, where that cannot be. Communicates for copied views only.
inline void begin_write(
    const at::Tensor& distributed,
    std::string_view caller,
    bool overwrites = false) {
  const auto& meta = distributed_meta(distributed);
  if (C10_UNLIKELY(meta.is_copied_view())) {
    meta.begin_write_of_copy(caller, overwrites);
  } else {
    meta.count_write();
  }
}
inline void end_write(const at::Tensor& distributed, std::string_view caller) {
  const auto& meta = distributed_meta(distributed);
  if (C10_UNLIKELY(meta.is_copied_view())) {
    meta.copied_view().end_write(caller);
  }
}

// What a view of `base` remembers that shares its memory.
inline ViewOrigin view_origin(const at::Tensor& base) {
  const auto& meta = distributed_meta(base);
  if (C10_UNLIKELY(meta.is_copied_view())) {
    return {{}, meta.origin_.copy};
  }
  return {
      meta.origin_.memory
          ? meta.origin_.memory
          : MetaPtr::reclaim_copy(const_cast<DistributedMeta*>(&meta)),
      {}};
}

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
