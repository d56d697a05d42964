#include "dispatch/decompose.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/squeeze.h>

#include <string>

#include "dispatch/tensor.h"

namespace tessera::detail {

const OpInfo& aten_op(const char* name, const char* overload) {
  // Kept for the life of the process, as plans that name it may be.
  return *new OpInfo(c10::Dispatcher::singleton().findSchemaOrThrow(
      (std::string("aten::") + name).c_str(), overload));
}

c10::SmallVector<int64_t, 5> reduced_dims(
    const at::Tensor& self, at::OptionalIntArrayRef dims) {
  c10::SmallVector<int64_t, 5> all;
  if (dims.has_value()) {
    all.append(dims->begin(), dims->end());
  }
  if (all.empty()) {
    for (int64_t d = 0; d < self.dim(); ++d) {
      all.push_back(d);
    }
  }
  at::maybe_wrap_dims(all, self.dim());
  return all;
}

int64_t reduced_count(const at::Tensor& self, at::IntArrayRef dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) {
    count *= self.dim() == 0 ? 1 : self.size(dim);
  }
  return count;
}

at::ScalarType accumulate_dtype(at::ScalarType dtype) {
  const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
  return half ? at::kFloat : dtype;
}

namespace {

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
  return make_distributed(
      distributed_meta(view).spec,
      current_shards(view),
      view_origin(self, /*copied=*/true));
}

}  // namespace

void register_decompositions(torch::Library& aten) {
  aten.impl("view_as_real", &view_as_real);
  aten.impl("squeeze", &squeeze);
  aten.impl("squeeze.dim", &squeeze_dim);
  aten.impl("_reshape_alias", &reshape_alias);
  register_moments(aten);
  register_norms(aten);
  register_losses(aten);
  register_nonzero(aten);
  register_index(aten);
  register_fused_optimizers(aten);
}

}  // namespace tessera::detail
