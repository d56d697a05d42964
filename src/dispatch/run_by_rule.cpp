#include "dispatch/run_by_rule.h"

#include <string>

#include "dispatch/autograd.h"
#include "dispatch/tensor.h"

namespace tessera::detail {

const OpInfo& aten_op(const char* name, const char* overload) {
  // Kept for the life of the process, as plans that name it may be.
  return *new OpInfo(c10::Dispatcher::singleton().findSchemaOrThrow(
      (std::string("aten::") + name).c_str(), overload));
}

at::Tensor reduced_for(const at::Tensor& tensor, const char* cause) {
  return redistribute(
      tensor,
      grad_placements_of(distributed_meta(tensor).spec->placements),
      cause);
}

}  // namespace tessera::detail
