// Stands in for gloo.cpp where Gloo's headers are missing.
#include <c10/util/Exception.h>

#include "comm/process/gloo.h"

namespace tessera::detail {

c10::intrusive_ptr<c10d::Backend> make_gloo(const GroupRequest& /*request*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "[get_group] this library was built without Gloo; install its headers "
      "(Debian: libgloo-dev) and build again");
}

}  // namespace tessera::detail
