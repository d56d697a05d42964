#include "dispatch/handwritten.h"

#include <ATen/ops/squeeze.h>
#include <ATen/ops/t.h>
#include <ATen/ops/transpose.h>
#include <ATen/ops/unsqueeze.h>

#include "dispatch/as_strided.h"
#include "dispatch/grad_layout.h"
#include "dispatch/random.h"
#include "dispatch/tensor.h"
#include "dispatch/view_kernel.h"

namespace tessera::detail {

namespace {

at::Tensor detach(const at::Tensor& self) { return make_alias(self); }

at::Tensor alias(const at::Tensor& self) {
  keep_grad_layouts(self);
  return make_alias(self);
}

// Views in place change what the tensor is, not what it holds: it becomes the
// view of itself.
at::Tensor& become_view(at::Tensor& self, const at::Tensor& view) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !distributed_meta(view).is_copied_view(),
      "a view in place of a tensor that lies as ",
      to_string(distributed_meta(self).spec->placements),
      " would need a copy in another layout, which other views of the tensor "
      "would not see: use the op that is not in place");
  become(self, view);
  return self;
}

at::Tensor& squeeze_(at::Tensor& self) {
  return become_view(self, at::squeeze(self));
}
at::Tensor& squeeze_dim_(at::Tensor& self, int64_t dim) {
  return become_view(self, at::squeeze(self, dim));
}
at::Tensor& squeeze_dims_(at::Tensor& self, at::IntArrayRef dims) {
  return become_view(self, at::squeeze(self, dims));
}
at::Tensor& unsqueeze_(at::Tensor& self, int64_t dim) {
  return become_view(self, at::unsqueeze(self, dim));
}
at::Tensor& t_(at::Tensor& self) { return become_view(self, at::t(self)); }
at::Tensor& transpose_(at::Tensor& self, int64_t dim0, int64_t dim1) {
  return become_view(self, at::transpose(self, dim0, dim1));
}

// set_data: a plain tensor may be given the data of a distributed one, as
// Module::clone() does, and then is distributed. Not the other way round.
bool has_compatible_shallow_copy_type(
    const at::Tensor& self, const at::Tensor& from) {
  return is_dtensor(from) &&
         (is_dtensor(self) || self.layout() == at::kStrided);
}

}  // namespace

void register_set_data(torch::Library& aten) {
  aten.impl(
      "_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

void register_handwritten(torch::Library& aten) {
  aten.impl("detach", &detach);
  aten.impl("alias", &alias);
  aten.impl("view", &view);
  aten.impl("as_strided", &as_strided);
  aten.impl("squeeze_", &squeeze_);
  aten.impl("squeeze_.dim", &squeeze_dim_);
  aten.impl("squeeze_.dims", &squeeze_dims_);
  aten.impl("unsqueeze_", &unsqueeze_);
  aten.impl("t_", &t_);
  aten.impl("transpose_", &transpose_);
  register_set_data(aten);
  register_random_fills(aten);
  register_random_composed(aten);
}

bool leaves_to_composite(const c10::OperatorName& name) {
  constexpr std::string_view kForeach = "aten::_foreach_";
  return std::string_view(name.name).substr(0, kForeach.size()) == kForeach;
}

}  // namespace tessera::detail
