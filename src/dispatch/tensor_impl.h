// The c10::TensorImpl of a distributed tensor that an op makes. It adds nothing
// to its base; shallow copies are of the base itself. It only hands memory of
// tensors that are gone on to the next ones: its own, and the c10::ExtraMeta
// with the two texts of storage errors that every tensor keeps.
#pragma once

#include <c10/core/TensorImpl.h>

namespace tessera::detail {

class DistributedImpl final : public c10::TensorImpl {
 public:
  // A tensor without storage that holds `meta`.
  DistributedImpl(
      c10::DispatchKeySet keys,
      caffe2::TypeMeta dtype,
      c10::Device device,
      c10::intrusive_ptr<c10::BackendMeta> meta);
  ~DistributedImpl() override;

  static void* operator new(size_t size);
  static void operator delete(void* block);
};

}  // namespace tessera::detail
