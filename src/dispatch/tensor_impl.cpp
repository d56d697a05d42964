#include "dispatch/tensor_impl.h"

#include <array>
#include <utility>

#include "dispatch/recycled.h"

namespace tessera::detail {
namespace {

using ExtraMetaPtr = std::unique_ptr<c10::ExtraMeta>;

constexpr const char* kNoStorage =
    "a distributed tensor has no storage of its own: use full_tensor() for the "
    "whole value, to_local() or shard(rank) for a rank's part";

ExtraMetaPtr make_extra() {
  auto extra = std::make_unique<c10::ExtraMeta>();
  extra->custom_data_ptr_error_msg_ = kNoStorage;
  extra->custom_storage_error_msg_ = kNoStorage;
  return extra;
}

// Whether the texts, and a meta, are all that it holds. Its other members are
// not the same in all versions of torch.
template <typename Extra>
bool has_only_texts(const Extra& extra) {
  bool more = extra.symbolic_shape_meta_ != nullptr;
  if constexpr (requires { extra.fake_device_; }) {
    more |= extra.fake_device_.has_value();
  }
  if constexpr (requires { extra.fake_tensor_mode_; }) {
    more |= extra.fake_tensor_mode_ != nullptr;
  }
  return !more && extra.custom_data_ptr_error_msg_.has_value() &&
         extra.custom_storage_error_msg_.has_value();
}

// What the tensors that a thread has let go leave to the next ones.
class Spares {
 public:
  struct Spare {
    void* block;
    ExtraMetaPtr extra;
  };

  ~Spares() {
    while (!empty()) {
      ::operator delete(take().block);
    }
  }

  bool empty() const { return count_ == 0; }
  bool full() const { return count_ == kept_.size(); }
  Spare take() { return std::move(kept_[--count_]); }
  void give(Spare spare) { kept_[count_++] = std::move(spare); }

 private:
  std::array<Spare, kRecycled> kept_;
  size_t count_ = 0;
};

}  // namespace

DistributedImpl::DistributedImpl(
    c10::DispatchKeySet keys,
    caffe2::TypeMeta dtype,
    c10::Device device,
    ExtraMetaPtr extra)
    : TensorImpl(keys, dtype, device) {
  extra_meta_ = std::move(extra);
  set_storage_access_should_throw();
}

c10::intrusive_ptr<DistributedImpl> DistributedImpl::make(
    c10::DispatchKeySet keys,
    caffe2::TypeMeta dtype,
    c10::Device device,
    c10::intrusive_ptr<c10::BackendMeta> meta) {
  auto* const spares = recycled<Spares>();
  auto [block, extra] =
      spares != nullptr && !spares->empty()
          ? spares->take()
          : Spares::Spare{
                ::operator new(sizeof(DistributedImpl)), make_extra()};
  extra->backend_meta_ = std::move(meta);
  return c10::intrusive_ptr<DistributedImpl>::unsafe_steal_from_new(
      ::new (block) DistributedImpl(keys, dtype, device, std::move(extra)));
}

void DistributedImpl::operator delete(
    DistributedImpl* self, std::destroying_delete_t) {
  auto extra = std::move(self->extra_meta_);
  self->~DistributedImpl();
  const bool reusable = extra != nullptr && has_only_texts(*extra);
  if (reusable) {
    // Before asking for room: it may be the last to hold other tensors.
    extra->backend_meta_.reset();
  }
  auto* const spares = recycled<Spares>();
  if (reusable && spares != nullptr && !spares->full()) {
    spares->give({self, std::move(extra)});
  } else {
    ::operator delete(self);
  }
}

void DistributedImpl::set_geometry(
    c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  sizes_and_strides_.set_sizes(sizes);
  sizes_and_strides_.set_strides(strides);
  bool contiguous = true;
  numel_ = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    contiguous &= strides[d] == numel_ || sizes[d] == 1;
    numel_ *= sizes[d];
  }
  // Of four and five dimensions channels may be the last in memory as well.
  if (!contiguous || sizes.size() == 4 || sizes.size() == 5) {
    refresh_contiguous();
  }
}

}  // namespace tessera::detail
