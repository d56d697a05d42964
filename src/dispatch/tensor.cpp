#include "dispatch/tensor.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <compare>
#include <cstring>
#include <mutex>

#include "dispatch/tensor_impl.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

c10::Device device_of(const Spec& spec, ShardsRef shards) {
  return shards.empty() ? c10::Device(spec.mesh.device_type())
                        : shards[0].device();
}

// Sparse shards make a sparse tensor.
c10::DispatchKeySet keys_of(const DistributedMeta& meta, c10::Device device) {
  const auto keys = distributed_keys(device.type());
  const auto& shards = meta.unchecked_shards();
  const bool sparse = !shards.empty() && shards[0].is_sparse();
  return sparse ? keys.remove(c10::DispatchKey::Dense)
                      .add(c10::DispatchKey::SparsePrivateUse3)
                : keys;
}

}  // namespace

at::Tensor wrap_meta(
    c10::intrusive_ptr<c10::BackendMeta> meta,
    c10::Device device,
    bool inference) {
  const auto& held = *static_cast<const DistributedMeta*>(meta.get());
  const Spec& spec = *held.spec;
  const auto keys = keys_of(held, device);
  const auto dtype = c10::scalarTypeToTypeMeta(spec.dtype);
  auto impl = DistributedImpl::make(keys, dtype, device, std::move(meta));
  if (C10_UNLIKELY(impl->is_inference() != inference)) {
    // Seen afterwards: asking for the mode takes longer.
    const c10::InferenceMode mode(inference);
    impl = DistributedImpl::make(
        keys, dtype, device, impl->get_backend_meta_intrusive_ptr());
  }
  impl->set_geometry(spec.sizes, spec.strides);
  return at::Tensor(std::move(impl));
}

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

struct DistributedMeta::PlainAliases {
  std::mutex mutex;
  c10::SmallVector<c10::VariableVersion, 2> counters;
};

DistributedMeta::DistributedMeta(SpecPtr s, Shards parts, ViewOrigin from)
    : spec(std::move(s)), shards_(std::move(parts)), origin_(std::move(from)) {}

DistributedMeta::DistributedMeta(SpecPtr s, at::Tensor part, ViewOrigin from)
    : spec(std::move(s)),
      shards_(only(std::move(part))),
      origin_(std::move(from)) {}

DistributedMeta::~DistributedMeta() {
  if (auto* impl = handed_out_.load(std::memory_order_relaxed)) {
    c10::intrusive_ptr<c10::TensorImpl>::reclaim(impl);
  }
  delete plain_aliases_.load(std::memory_order_relaxed);
}

uint64_t DistributedMeta::writes() const {
  const auto& counts = memory();
  uint64_t sum = counts.writes_.load(std::memory_order_relaxed);
  if (auto* aliases = counts.plain_aliases_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(aliases->mutex);
    for (const auto& counter : aliases->counters) {
      sum += counter.current_version();
    }
  }
  return sum;
}

void DistributedMeta::count_writes_of(
    const c10::VariableVersion& version) const {
  auto& place = memory().plain_aliases_;
  auto* aliases = place.load(std::memory_order_acquire);
  if (aliases == nullptr) {
    auto made = std::make_unique<PlainAliases>();
    if (place.compare_exchange_strong(
            aliases, made.get(), std::memory_order_acq_rel)) {
      aliases = made.release();
    }
  }
  const std::lock_guard lock(aliases->mutex);
  for (const auto& counter : aliases->counters) {
    // Handles of one counter: torch has no way to ask.
    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison)
    if (std::memcmp(&counter, &version, sizeof(version)) == 0) {
      return;
    }
  }
  aliases->counters.push_back(version);
}

namespace {

// The plain alias that is kept for to_local(), if nobody else holds it.
int64_t kept_aliases(c10::TensorImpl* handed_out) {
  return handed_out != nullptr &&
                 c10::raw::intrusive_ptr::use_count(handed_out) == 1
             ? 1
             : 0;
}

}  // namespace

bool DistributedMeta::is_unreachable(const MetaPtr& meta) {
  const auto& memory = meta->origin_.memory;
  if (meta.use_count() != 1 || (memory && memory.use_count() != 1)) {
    return false;
  }
  int64_t holders = 1 + kept_aliases(meta->handed_out_.load());
  if (memory) {
    holders += 1 + kept_aliases(memory->handed_out_.load());
  }
  return std::all_of(
      meta->shards_.begin(), meta->shards_.end(), [&](const auto& shard) {
        return shard.has_storage() &&
               static_cast<int64_t>(shard.storage().use_count()) <= holders;
      });
}

at::Tensor make_distributed(SpecPtr spec, Shards shards, ViewOrigin origin) {
  const auto device = device_of(*spec, shards);
  const bool inference = shards.empty() ? c10::InferenceMode::is_enabled()
                                        : shards[0].is_inference();
  return wrap_meta(
      c10::make_intrusive<DistributedMeta>(
          std::move(spec), std::move(shards), std::move(origin)),
      device,
      inference);
}

at::Tensor make_distributed(SpecPtr spec, at::Tensor shard, ViewOrigin origin) {
  const auto device = shard.device();
  const bool inference = shard.is_inference();
  return wrap_meta(
      c10::make_intrusive<DistributedMeta>(
          std::move(spec), std::move(shard), std::move(origin)),
      device,
      inference);
}

MadeLike::MadeLike(const at::Tensor& base) {
  auto& state = c10::AutogradState::get_tls_state();
  if (base.defined() && base.is_inference() != state.get_inference_mode()) {
    state.set_inference_mode(base.is_inference());
    changed_ = true;
  }
}

MadeLike::~MadeLike() {
  if (changed_) {
    auto& state = c10::AutogradState::get_tls_state();
    state.set_inference_mode(!state.get_inference_mode());
  }
}

at::Tensor make_alias(const at::Tensor& distributed) {
  auto meta = MetaPtr::reclaim_copy(static_cast<DistributedMeta*>(
      distributed.unsafeGetTensorImpl()->get_backend_meta()));
  return placed_view(
      wrap_meta(
          std::move(meta), distributed.device(), distributed.is_inference()),
      distributed);
}

namespace {

c10::intrusive_ptr<c10::TensorImpl> alias_impl(
    const at::Tensor& shard, const at::Tensor& distributed) {
  auto* impl = shard.unsafeGetTensorImpl();
  const auto& version = distributed.unsafeGetTensorImpl()->version_counter();
  if (impl->is_inference() || !version.enabled()) {
    return impl->shallow_copy_and_detach(
        impl->version_counter(), /*allow_tensor_metadata_change=*/true);
  }
  distributed_meta(distributed).count_writes_of(version);
  return impl->shallow_copy_and_detach(
      version, /*allow_tensor_metadata_change=*/true);
}

}  // namespace

at::Tensor shard_alias(const at::Tensor& shard, const at::Tensor& distributed) {
  // Terms that are held in float.
  return shard.dtype() == distributed.dtype()
             ? at::Tensor(alias_impl(shard, distributed))
             : shard.to(distributed.scalar_type());
}

at::Tensor hand_out_shard(const at::Tensor& distributed) {
  const auto& meta = distributed_meta(distributed);
  const auto& shard = current_shards(distributed)[0];
  if (shard.layout() != at::kStrided || shard.dtype() != distributed.dtype()) {
    return shard_alias(shard, distributed);
  }
  auto alias = alias_impl(shard, distributed);
  // One that was changed stays with whoever changed it, and none takes its
  // place: another thread may be about to hand it out.
  c10::TensorImpl* known = nullptr;
  if (meta.handed_out_.compare_exchange_strong(
          known, alias.get(), std::memory_order_acq_rel)) {
    auto kept = alias;
    kept.release();
  }
  return at::Tensor(std::move(alias));
}

bool follows_strides(const at::Tensor& shard, const Spec& spec) {
  if (shard.layout() != at::kStrided || shard.numel() == 0) {
    return true;
  }
  for (int64_t a = 0; a < shard.dim(); ++a) {
    for (int64_t b = a + 1; b < shard.dim(); ++b) {
      const auto whole = spec.strides[a] <=> spec.strides[b];
      const auto here = shard.stride(a) <=> shard.stride(b);
      if (shard.size(a) > 1 && shard.size(b) > 1 && whole != 0 && here != 0 &&
          whole != here) {
        return false;
      }
    }
  }
  return shard.is_non_overlapping_and_dense() ||
         spec.strides != local_strides(spec.sizes, spec.strides);
}

at::Tensor with_strides_of(const Spec& spec, at::Tensor shard) {
  if (follows_strides(shard, spec)) {
    return shard;
  }
  auto copy = at::empty_strided(
      shard.sizes(),
      local_strides(shard.sizes(), spec.strides),
      shard.options());
  return copy.copy_(shard);
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
      at::TensorOptions().dtype(spec.shard_dtype).device(device));
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
            shards[i].scalar_type() == spec.shard_dtype,
        "the shard at position ",
        positions[i],
        " is ",
        shards[i].scalar_type(),
        shards[i].sizes(),
        " but the layout ",
        spec.str(),
        " wants ",
        SizesRef(expected));
    TORCH_INTERNAL_ASSERT(
        follows_strides(shards[i], spec),
        "the shard at position ",
        positions[i],
        ", ",
        shards[i].sizes(),
        " with strides ",
        shards[i].strides(),
        ", does not lie in memory as the layout ",
        spec.str(),
        " says");
  }
}

}  // namespace tessera::detail
