#include "dispatch/copied_view.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>

#include <limits>
#include <mutex>
#include <unordered_set>

#include "dispatch/kernel.h"
#include "dispatch/write_into_base.h"

namespace tessera::detail {

namespace {

thread_local int making_now = 0;

// A number of changes that no base has.
constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

constexpr const char* kOutOfDate =
    "a view of a distributed tensor had to be copied into another layout, and "
    "its base has been written since: the copy is out of date. Take the view "
    "again after the write";

MetaPtr meta_ptr(const at::Tensor& distributed) {
  return MetaPtr::reclaim_copy(static_cast<DistributedMeta*>(
      distributed.unsafeGetTensorImpl()->get_backend_meta()));
}

// One call of a view op, for any base.
class ViewCall {
 public:
  ViewCall(
      const OpInfo& op,
      c10::ArrayRef<c10::IValue> args,
      size_t base,
      size_t output)
      : op_(op.handle),
        args_(args.begin(), args.end()),
        base_(base),
        output_(output),
        is_list_(op.returns_list) {
    args_[base_] = c10::IValue();
  }

  // Below autograd.
  at::Tensor operator()(const at::Tensor& base) const {
    torch::jit::Stack stack = args_;
    stack[base_] = base;
    const LocalOpGuard guard(/*is_view=*/false);
    op_.callBoxed(&stack);
    return is_list_ ? stack[0].toTensorVector()[output_]
                    : stack[output_].toTensor();
  }

  std::string name() const { return op_.schema().name(); }

 private:
  c10::OperatorHandle op_;
  torch::jit::Stack args_;  // without the base
  size_t base_;
  size_t output_;
  bool is_list_;
};

// The geometry of the view of a tensor that has `geometry` itself. Nothing for
// views as another dtype or of conjugates, and where ATen cannot tell.
std::optional<ViewGeometry> geometry_of(
    const ViewCall& call, const ViewGeometry& geometry, at::ScalarType dtype) {
  int64_t span = geometry.offset + 1;
  for (size_t d = 0; d < geometry.sizes.size(); ++d) {
    span += std::max<int64_t>(geometry.sizes[d] - 1, 0) * geometry.strides[d];
  }
  const auto memory =
      at::empty({span}, at::TensorOptions().dtype(dtype).device(at::kMeta));
  try {
    const auto view = call(
        memory.as_strided(geometry.sizes, geometry.strides, geometry.offset));
    if (view.scalar_type() == dtype && !view.is_conj() && !view.is_neg()) {
      return ViewGeometry{
          Sizes(view.sizes()), Sizes(view.strides()), view.storage_offset()};
    }
    return std::nullopt;
  } catch (const c10::NotImplementedError&) {
    return std::nullopt;  // an op without a meta kernel
  }
}

// Shards of a copy: neither the base's memory, nor shared among ranks that live
// here.
Shards in_own_memory(const Shards& shards, const DistributedMeta& base) {
  std::unordered_set<const c10::StorageImpl*> taken;
  for (const auto& shard : base.unchecked_shards()) {
    if (shard.has_storage()) {
      taken.insert(shard.storage().unsafeGetStorageImpl());
    }
  }
  Shards own;
  for (const auto& shard : shards) {
    const bool is_own =
        !shard.has_storage() ||
        taken.insert(shard.storage().unsafeGetStorageImpl()).second;
    own.push_back(is_own ? shard : shard.clone());
  }
  return own;
}

class Copy final : public CopiedView {
 public:
  Copy(ViewCall call, const at::Tensor& viewed, SpecPtr spec)
      : call_(std::move(call)),
        spec_(std::move(spec)),
        device_(viewed.device()),
        is_inference_(viewed.is_inference()),
        source_(meta_ptr(viewed)),
        base_(source_) {
    if (auto* copy = copy_of(*source_)) {
      // A view of a copy is one of what the copy views, unless it is of the
      // copy's memory in another form.
      const auto memory = copy->describes(*source_->spec)
                              ? copy->viewed_memory()
                              : std::nullopt;
      if (memory.has_value()) {
        base_ = memory->base;
        geometry_ = geometry_of(call_, memory->geometry, source_->spec->dtype);
        geometry_is_known_ = true;
      }
    } else if (!is_inference_) {
      base_->count_own_writes(viewed.unsafeGetTensorImpl()->version_counter());
    }
  }

  // Null if the tensor is no such view.
  static Copy* copy_of(const DistributedMeta& meta) {
    return meta.is_copied_view() ? dynamic_cast<Copy*>(&meta.copied_view())
                                 : nullptr;
  }

  // A tensor that has the meta of such a view, or of what it views.
  at::Tensor wrap(MetaPtr meta) const {
    return wrap_meta(std::move(meta), device_, is_inference_);
  }

  // The copy was made when the view was.
  void set_made(const Shards& shards) {
    shards_ = shards;
    is_made_ = true;
    made_at_ = changes_of_base();
  }

  void make_current(Shards& known) override {
    const std::lock_guard lock(mutex_);
    refresh(known);
    leave_unreachable_base();
  }

  void begin_write(
      Shards& known, std::string_view caller, bool overwrites) override {
    const std::lock_guard lock(mutex_);
    if (overwrites && !is_made_) {
      for (const int64_t position : spec_->mesh.local_positions()) {
        shards_.push_back(empty_shard(*spec_, position, device_));
      }
      known = shards_;
      is_made_ = true;
    } else {
      refresh(known);
    }
    leave_unreachable_base();
    if (!base_) {
      return;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        geometry().has_value(),
        "[",
        caller,
        "] writes into the result of ",
        call_.name(),
        ", which had to be copied into another layout and cannot be put back "
        "into its base: redistribute the base first such that the viewed "
        "dimension is not sharded, or write into the base");
    if (base_->is_copied_view()) {
      base_->begin_write_of_copy(caller, /*overwrites=*/false);
    }
  }

  void end_write(std::string_view caller) override {
    const std::lock_guard lock(mutex_);
    ++changes_;
    if (!base_) {
      return;
    }
    write_into_base(
        *base_, *geometry(), make_distributed(spec_, shards_), caller);
    if (base_->is_copied_view()) {
      base_->copied_view().end_write(caller);
    } else {
      base_->count_write();
    }
    made_at_ = changes_of_base();
  }

  void abandon_write() override {
    const std::lock_guard lock(mutex_);
    made_at_ = kNever;
  }

  bool is_current() const override {
    const std::lock_guard lock(mutex_);
    return !base_ || (is_made_ && made_at_ == changes_of_base() &&
                      (!source_->is_copied_view() ||
                       source_->copied_view().is_current()));
  }
  uint64_t changes() const override { return changes_; }

  bool is_made() const { return is_made_; }
  // Whether a tensor of this layout is the copy itself, not a view of it.
  bool describes(const Spec& spec) const { return &spec == spec_.get(); }

  // Nothing once the base was left, or where it is a copy itself.
  std::optional<ViewedMemory> viewed_memory() {
    const std::lock_guard lock(mutex_);
    if (!base_ || base_->is_copied_view() || !geometry().has_value()) {
      return std::nullopt;
    }
    return ViewedMemory{base_, *geometry()};
  }

 private:
  void refresh(Shards& known) {
    if (!base_) {
      return;
    }
    if (source_->is_copied_view()) {
      source_->make_current();
    }
    const auto changes = changes_of_base();
    if (is_made_ && made_at_ == changes) {
      return;
    }
    const auto source = wrap(source_);
    const MadeLike mode(source);
    const MakeViewsNow now;
    const auto view = call_(source);
    const auto shards = in_own_memory(current_shards(view), *source_);
    if (is_made_) {
      // Views of the copy share its memory.
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      for (size_t k = 0; k < shards.size(); ++k) {
        shards_[k].copy_(shards[k]);
      }
    } else {
      known = shards;
      shards_ = shards;
      is_made_ = true;
    }
    made_at_ = changes;
    ++changes_;
  }

  uint64_t changes_of_base() const {
    return base_->is_copied_view() ? base_->copied_view().changes()
                                   : base_->writes();
  }

  // Nobody sees a write into it any more, nor makes one.
  void leave_unreachable_base() {
    if (!base_ || !is_made_ || source_ != base_ || base_->is_copied_view()) {
      return;
    }
    source_ = {};
    if (DistributedMeta::is_unreachable(base_)) {
      base_ = {};
    } else {
      source_ = base_;
    }
  }

  // Of the view in the memory of `base_`. Found when it is first needed: most
  // copied views are only read.
  const std::optional<ViewGeometry>& geometry() {
    if (!geometry_is_known_) {
      const Spec& base = *base_->spec;
      geometry_ = geometry_of(call_, {base.sizes, base.strides, 0}, base.dtype);
      geometry_is_known_ = true;
    }
    return geometry_;
  }

  const ViewCall call_;
  const SpecPtr spec_;
  const c10::Device device_;
  const bool is_inference_;
  mutable std::mutex mutex_;
  // The tensor that the op views, and the one whose memory that is in the end:
  // another one if the op views a copied view. Null once nobody reaches it.
  MetaPtr source_;
  MetaPtr base_;
  std::optional<ViewGeometry> geometry_;
  bool geometry_is_known_ = false;
  bool is_made_ = false;
  uint64_t made_at_ = 0;
  std::atomic<uint64_t> changes_ = 0;
  Shards shards_;
};

class FrozenCopy final : public CopiedView {
 public:
  explicit FrozenCopy(const at::Tensor& base)
      : base_(meta_ptr(base)), made_at_(base_->writes()) {}

  void make_current(Shards& /*known*/) override {
    TORCH_CHECK(base_->writes() == made_at_, kOutOfDate);
  }
  void begin_write(
      Shards& /*known*/,
      std::string_view caller,
      bool /*overwrites*/) override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false,
        "[",
        caller,
        "] writes into entries of a sparse tensor that had to be copied into "
        "another layout, so that the write would not reach it: write into the "
        "sparse tensor");
  }
  void end_write(std::string_view /*caller*/) override {}
  void abandon_write() override {}
  bool is_current() const override { return base_->writes() == made_at_; }
  uint64_t changes() const override { return 0; }

 private:
  MetaPtr base_;
  uint64_t made_at_;
};

// The argument that the op views, if it is one distributed tensor.
std::optional<size_t> viewed_argument(
    const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  for (const auto& ret : op.returns) {
    if (ret.kind == ReturnInfo::Kind::View && args[ret.argument].isTensor() &&
        is_dtensor(args[ret.argument].toTensor())) {
      return ret.argument;
    }
  }
  return std::nullopt;
}

}  // namespace

MakeViewsNow::MakeViewsNow() { ++making_now; }
MakeViewsNow::~MakeViewsNow() { --making_now; }
bool MakeViewsNow::is_on() { return making_now > 0; }

at::Tensor copied_view(
    const OpInfo& op, c10::ArrayRef<c10::IValue> args, SpecPtr spec) {
  const auto argument = viewed_argument(op, args);
  TORCH_INTERNAL_ASSERT(argument.has_value(), op.name, " views no tensor");
  const auto& viewed = args[*argument].toTensor();
  auto copy =
      c10::make_intrusive<Copy>(ViewCall(op, args, *argument, 0), viewed, spec);
  const auto& made = *copy;
  return made.wrap(c10::make_intrusive<DistributedMeta>(
      std::move(spec), Shards(), ViewOrigin{{}, copy}));
}

ViewOrigin copied_origin(
    const OpInfo& op,
    c10::ArrayRef<c10::IValue> args,
    size_t output,
    const SpecPtr& spec,
    const Shards& shards) {
  const auto argument = viewed_argument(op, args);
  if (!argument.has_value()) {
    return {};
  }
  auto copy = c10::make_intrusive<Copy>(
      ViewCall(op, args, *argument, output), args[*argument].toTensor(), spec);
  copy->set_made(shards);
  return {{}, std::move(copy)};
}

ViewOrigin frozen_origin(const at::Tensor& base) {
  return {{}, c10::make_intrusive<FrozenCopy>(base)};
}

bool is_unmade(const at::Tensor& distributed) {
  const auto* copy = Copy::copy_of(distributed_meta(distributed));
  return copy != nullptr && !copy->is_made();
}

std::optional<ViewedMemory> viewed_memory(const at::Tensor& tensor) {
  const auto& meta = distributed_meta(tensor);
  auto* copy = Copy::copy_of(meta);
  if (copy == nullptr || !copy->describes(*meta.spec)) {
    return std::nullopt;
  }
  return copy->viewed_memory();
}

}  // namespace tessera::detail
