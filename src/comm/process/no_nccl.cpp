// Stands in for nccl.cpp where torch was built without NCCL.
#include <c10/util/Exception.h>

#include "comm/process/nccl.h"

namespace tessera::detail {

std::string nccl_device_name(c10::Device /*device*/) { return ""; }

DeviceBackend make_nccl(
    const c10::intrusive_ptr<c10d::Store>& /*store*/,
    const std::vector<int64_t>& /*ranks*/,
    int64_t /*coordinate*/,
    c10::Device /*device*/) {
  TORCH_INTERNAL_ASSERT(false, "built without NCCL");
}

c10::intrusive_ptr<c10d::Backend> make_users_nccl(
    const c10::intrusive_ptr<c10d::Store>& /*store*/,
    const std::vector<int64_t>& /*ranks*/,
    int64_t /*coordinate*/,
    std::chrono::milliseconds /*timeout*/) {
  TORCH_INTERNAL_ASSERT(false, "built without NCCL");
}

}  // namespace tessera::detail
