#include "dispatch/tensor_impl.h"

#include <array>
#include <memory>
#include <string>
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

// What the tensors that a thread has let go leave to the next ones.
class Spares {
 public:
  ExtraMetaPtr take() {
    return count_ == 0 ? make_extra() : std::move(kept_[--count_]);
  }

  // Keeps the texts, and nothing else of what the tensor may have been given.
  void give(ExtraMetaPtr extra) {
    if (!extra->custom_data_ptr_error_msg_ ||
        !extra->custom_storage_error_msg_) {
      return;
    }
    auto data_ptr_text = std::move(extra->custom_data_ptr_error_msg_);
    auto storage_text = std::move(extra->custom_storage_error_msg_);
    std::destroy_at(extra.get());
    std::construct_at(extra.get());
    extra->custom_data_ptr_error_msg_ = std::move(data_ptr_text);
    extra->custom_storage_error_msg_ = std::move(storage_text);
    // Asked here: what it held may have been the last to hold other tensors.
    if (count_ < kept_.size()) {
      kept_[count_++] = std::move(extra);
    }
  }

 private:
  std::array<ExtraMetaPtr, kRecycled> kept_;
  size_t count_ = 0;
};

}  // namespace

DistributedImpl::DistributedImpl(
    c10::DispatchKeySet keys,
    caffe2::TypeMeta dtype,
    c10::Device device,
    c10::intrusive_ptr<c10::BackendMeta> meta)
    : TensorImpl(keys, dtype, device) {
  auto* const spares = OfThisThread<Spares>::get();
  extra_meta_ = spares == nullptr ? make_extra() : spares->take();
  extra_meta_->backend_meta_ = std::move(meta);
  set_storage_access_should_throw();
}

void* DistributedImpl::operator new(size_t) {
  return RecycledBlocks<sizeof(DistributedImpl)>::allocate();
}

void DistributedImpl::operator delete(void* block) {
  RecycledBlocks<sizeof(DistributedImpl)>::free(block);
}

DistributedImpl::~DistributedImpl() {
  auto* const spares = OfThisThread<Spares>::get();
  if (spares != nullptr && extra_meta_ != nullptr) {
    spares->give(std::move(extra_meta_));
  }
}

}  // namespace tessera::detail
