// The c10::TensorImpl of a distributed tensor that an op makes. It adds nothing
// to its base; shallow copies are of the base itself. It only hands memory of
// tensors that are gone on to the next ones: its own, and the c10::ExtraMeta
// with the two texts of storage errors that every tensor keeps.
#pragma once

#include <c10/core/TensorImpl.h>

#include <memory>
#include <new>

namespace tessera::detail {

class DistributedImpl final : public c10::TensorImpl {
 public:
  // A tensor without storage that holds `meta`.
  [[gnu::hot]] static c10::intrusive_ptr<DistributedImpl> make(
      c10::DispatchKeySet keys,
      caffe2::TypeMeta dtype,
      c10::Device device,
      c10::intrusive_ptr<c10::BackendMeta> meta);

  // set_sizes_and_strides for a tensor that was just made, from a spec, which
  // has checked them. Most are contiguous, as every new tensor says it is.
  [[gnu::hot]] void set_geometry(
      c10::IntArrayRef sizes, c10::IntArrayRef strides);

  // Keeps the block, whichever base it is deleted as.
  [[gnu::hot]] static void operator delete(
      DistributedImpl* self, std::destroying_delete_t);

 private:
  using ExtraMetaPtr = std::unique_ptr<c10::ExtraMeta>;

  [[gnu::hot]] DistributedImpl(
      c10::DispatchKeySet keys,
      caffe2::TypeMeta dtype,
      c10::Device device,
      ExtraMetaPtr extra);
};

}  // namespace tessera::detail
