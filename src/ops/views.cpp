// Views written by hand: those that do no local work (detach), that change the
// tensor itself (squeeze_), or that read the sizes of the whole tensor.
#include <ATen/ops/squeeze.h>
#include <ATen/ops/t.h>
#include <ATen/ops/transpose.h>
#include <ATen/ops/unsqueeze.h>

#include "dispatch/copied_view.h"
#include "dispatch/grad_layout.h"
#include "dispatch/run_by_rule.h"
#include "dispatch/tensor.h"
#include "ops/all_ops.h"
#include "ops/as_strided.h"
#include "ops/view.h"

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

// A dimension is squeezed if the whole tensor has size 1 there: on a rank a
// longer one may have size 1 too. squeeze.dims has a rule that sees to it.
at::Tensor squeeze(const at::Tensor& self) {
  c10::SmallVector<int64_t, 5> dims;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (self.size(d) == 1) {
      dims.push_back(d);
    }
  }
  return at::squeeze(self, at::IntArrayRef(dims));
}

at::Tensor squeeze_dim(const at::Tensor& self, int64_t dim) {
  dim = c10::maybe_wrap_dim(dim, self.dim());
  const bool goes = self.dim() > 0 && self.size(dim) == 1;
  return at::squeeze(self, goes ? at::IntArrayRef(&dim, 1) : at::IntArrayRef());
}

// The strides are those that a view has, or reshape would not have called it.
at::Tensor reshape_alias(
    const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef) {
  return self.view(size);
}

// A shard may be a conjugate view, which has no real view. The whole tensor
// does not say so, and formulas do not resolve it: the view is of a copy.
at::Tensor view_as_real(const at::Tensor& self) {
  static const OpInfo& op = aten_op("view_as_real");
  const MadeLike mode(self);
  Shards resolved;
  bool copied = false;
  for (const auto& shard : current_shards(self)) {
    copied |= shard.is_conj();
    resolved.push_back(shard.resolve_conj());
  }
  if (!copied) {
    return run_by_rule(op, self)[0].toTensor();
  }
  const auto view =
      run_by_rule(
          op,
          make_distributed(distributed_meta(self).spec, std::move(resolved)))[0]
          .toTensor();
  const auto& spec = distributed_meta(view).spec;
  const auto& shards = current_shards(view);
  return placed_view(
      make_distributed(
          spec, shards, copied_origin(op, {self}, /*output=*/0, spec, shards)),
      self,
      self.storage_offset());  // of twice as many elements
}

// set_data: a plain tensor may be given the data of a distributed one, as
// Module::clone() does, and then is distributed. Not the other way round.
bool has_compatible_shallow_copy_type(
    const at::Tensor& self, const at::Tensor& from) {
  return is_dtensor(from) &&
         (is_dtensor(self) || self.layout() == at::kStrided);
}

}  // namespace

void register_views(OpRegistry& ops) {
  ops.own_kernel("detach", &detach);
  ops.own_kernel("alias", &alias);
  ops.own_kernel("view", &view);
  ops.own_kernel("as_strided", &as_strided);
  ops.above_autograd("as_strided", TORCH_FN(recorded_as_strided));
  ops.composed("view_as_real", &view_as_real);
  ops.composed("squeeze", &squeeze);
  ops.composed("squeeze.dim", &squeeze_dim);
  ops.composed("_reshape_alias", &reshape_alias);
  ops.composed("squeeze_", &squeeze_);
  ops.composed("squeeze_.dim", &squeeze_dim_);
  ops.composed("squeeze_.dims", &squeeze_dims_);
  ops.composed("unsqueeze_", &unsqueeze_);
  ops.composed("t_", &t_);
  ops.composed("transpose_", &transpose_);
  ops.own_kernel(
      "_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
  ops.above_autograd(
      "_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

}  // namespace tessera::detail
