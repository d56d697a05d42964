// Stands in for gloo.cpp where Gloo's headers are missing.
#include <c10/util/Exception.h>

#include "comm/backend.h"

namespace tessera::detail {

bool has_gloo() { return false; }

GroupBackend make_gloo(const GroupRequest& /*request*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "[World::connect] this library was built without Gloo; install its "
      "headers (Debian: libgloo-dev) and build again, or use World::simulate");
}

}  // namespace tessera::detail
