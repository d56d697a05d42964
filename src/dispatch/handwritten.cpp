#include "dispatch/handwritten.h"

#include "dispatch/tensor.h"

namespace tessera::detail {

namespace {

at::Tensor detach(const at::Tensor& self) { return make_alias(self); }

}  // namespace

void register_handwritten(torch::Library& aten) {
  aten.impl("detach", &detach);
  aten.impl("alias", &detach);
  register_random(aten);
}

bool leaves_to_composite(const c10::OperatorName& name) {
  constexpr std::string_view kForeach = "aten::_foreach_";
  return std::string_view(name.name).substr(0, kForeach.size()) == kForeach;
}

}  // namespace tessera::detail
