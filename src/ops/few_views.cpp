// select and slice of a sharded dimension: few elements are collected, and the
// gradient comes in the layout of the tensor that they are taken from.
#include <ATen/core/Tensor.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/slice_ops.h>

#include <algorithm>

#include "core/terms.h"
#include "dispatch/autograd.h"
#include "dispatch/copied_view.h"
#include "dispatch/grad_layout.h"
#include "dispatch/op_plan.h"
#include "dispatch/run_by_rule.h"
#include "dispatch/tangents.h"
#include "dispatch/tensor.h"
#include "ops/all_ops.h"
#include "ops/by_formula.h"
#include "ops/few_elements.h"
#include "ops/few_rows.h"

namespace tessera::detail {

namespace {

// What select(dim, index) takes. Nothing where the rule serves the call, or
// refuses it.
std::optional<Elements> few_selected(
    const at::Tensor& self, int64_t dim, const c10::SymInt& index) {
  dim = from_front(dim, self);
  if (!asks_for_few(self, dim, 1)) {
    return std::nullopt;
  }
  const int64_t size = self.size(dim);
  const int64_t given = index.guard_int(__FILE__, __LINE__);
  const int64_t start = given < 0 ? given + size : given;
  if (start < 0 || start >= size) {
    return std::nullopt;
  }
  return Elements{dim, start, 1, 1};
}

// What slice(dim, start, end, step) takes of a dimension that is sharded.
// Nothing where that is all or no elements, or the rule refuses the call.
std::optional<Elements> sliced(
    const at::Tensor& self,
    int64_t dim,
    const std::optional<c10::SymInt>& start,
    const std::optional<c10::SymInt>& end,
    const c10::SymInt& given_step) {
  dim = from_front(dim, self);
  const int64_t step = given_step.guard_int(__FILE__, __LINE__);
  if (step <= 0 || !is_sharded_along(self, dim)) {
    return std::nullopt;
  }
  const int64_t size = self.size(dim);
  const auto bound = [&](const std::optional<c10::SymInt>& given,
                         int64_t otherwise) {
    const int64_t at =
        given.has_value() ? given->guard_int(__FILE__, __LINE__) : otherwise;
    return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const int64_t first = bound(start, 0);
  const int64_t length = bound(end, size) - first;
  const int64_t count = length <= 0 ? 0 : (length - 1) / step + 1;
  if (count == 0 || count == size) {
    return std::nullopt;
  }
  return Elements{dim, first, count, step};
}

// The layout of the view of a few elements, with the view's strides.
SpecPtr few_spec(
    const at::Tensor& self, const Elements& elements, bool drops_dim) {
  const Spec& spec = *distributed_meta(self).spec;
  const int64_t dim = elements.dim;
  Sizes sizes = spec.sizes;
  Sizes strides(self.strides());
  auto placements = unsharded(spec.placements, dim, Replicate());
  sizes[dim] = elements.count;
  strides[dim] *= elements.step;
  const auto shard_dtype = shard_dtype_in(spec, placements);
  if (drops_dim) {
    sizes.erase(sizes.begin() + dim);
    strides.erase(strides.begin() + dim);
    for (auto& placement : placements) {
      if (placement.is_shard() && placement.dim() > dim) {
        placement = Shard(placement.dim() - 1);
      }
    }
  }
  return Spec::make(
      spec.mesh, placements, sizes, strides, spec.dtype, shard_dtype);
}

at::Tensor collected(
    const OpInfo& op,
    const at::Tensor& self,
    const Elements& elements,
    bool drops_dim) {
  const auto spec = few_spec(self, elements, drops_dim);
  const auto everywhere = collect(op, self, elements);
  Shards shards;
  for (const auto& shard : current_shards(everywhere)) {
    shards.push_back(with_strides_of(
        *spec, drops_dim ? shard.select(elements.dim, 0) : shard));
  }
  return make_distributed(spec, std::move(shards));
}

// The view of a few elements, which is copied when it is read.
at::Tensor few_view(
    const OpInfo& op,
    const torch::jit::Stack& args,
    const Elements& elements,
    bool drops_dim) {
  const auto& self = args[0].toTensor();
  if (is_new_leaf(self)) {
    keep_grad_layouts(self);
  }
  const MadeLike mode(self);
  const LocalOpGuard guard(/*is_view=*/true);
  if (MakeViewsNow::is_on() || self.is_meta()) {
    return collected(op, self, elements, drops_dim);
  }
  return placed_view(
      copied_view(op, args, few_spec(self, elements, drops_dim)),
      self,
      elements.start * self.stride(elements.dim));
}

// The view by the op's rule. That of a copied view which nobody has read is
// itself copied when it is read: a write into it reaches the base past both.
at::Tensor view_by_rule(const OpInfo& op, torch::jit::Stack args) {
  const auto& self = args[0].toTensor();
  if (is_unmade(self) && !MakeViewsNow::is_on() && op.rule() != nullptr) {
    const MadeLike mode(self);
    const LocalOpGuard guard(/*is_view=*/true);
    const auto plan = plan_op(op, args);
    return placed_view(
        copied_view(op, args, plan->outputs[0]),
        self,
        plan->view_offsets.empty() ? 0 : plan->view_offsets[0]);
  }
  run_op(op, &args);
  return std::move(args[0]).toTensor();
}

// ATen's signatures.
// NOLINTBEGIN(performance-unnecessary-value-param)
at::Tensor select(const at::Tensor& self, int64_t dim, c10::SymInt index) {
  static const OpInfo& op = aten_op("select", "int");
  const auto few = few_selected(self, dim, index);
  torch::jit::Stack args{self, dim, index};
  return few.has_value() ? few_view(op, args, *few, /*drops_dim=*/true)
                         : view_by_rule(op, std::move(args));
}

at::Tensor slice(
    const at::Tensor& self,
    int64_t dim,
    std::optional<c10::SymInt> start,
    std::optional<c10::SymInt> end,
    c10::SymInt step) {
  static const OpInfo& op = aten_op("slice", "Tensor");
  const auto elements = sliced(self, dim, start, end, step);
  torch::jit::Stack args{self, dim, start, end, step};
  return elements && asks_for_few(self, elements->dim, elements->count)
             ? few_view(op, args, *elements, /*drops_dim=*/false)
             : view_by_rule(op, std::move(args));
}
// NOLINTEND(performance-unnecessary-value-param)

// A view as autograd knows it, with a gradient of our own.
template <class Op, class... Args>
at::Tensor recorded_view(
    c10::DispatchKeySet keys,
    const std::optional<Elements>& elements,
    bool drops_dim,
    const at::Tensor& self,
    const Args&... args) {
  if (!elements.has_value() || has_tangent(self)) {
    return by_formula<Op>(keys, self, args...);
  }
  auto view = Op::redispatch(keys & c10::after_autograd_keyset, self, args...);
  record(
      elements_backward(distributed_meta(self).spec, *elements, drops_dim),
      self,
      view);
  return view;
}

at::Tensor recorded_select(
    c10::DispatchKeySet keys,
    const at::Tensor& self,
    int64_t dim,
    c10::SymInt index) {
  using Op = at::_ops::select_int;
  if (!records(self) && !has_tangent(self)) {
    return Op::redispatch(
        keys & c10::after_autograd_keyset, self, dim, std::move(index));
  }
  return recorded_view<Op>(
      keys,
      few_selected(self, dim, index),
      /*drops_dim=*/true,
      self,
      dim,
      index);
}

at::Tensor recorded_slice(
    c10::DispatchKeySet keys,
    const at::Tensor& self,
    int64_t dim,
    std::optional<c10::SymInt> start,
    std::optional<c10::SymInt> end,
    c10::SymInt step) {
  using Op = at::_ops::slice_Tensor;
  if (!records(self) && !has_tangent(self)) {
    return Op::redispatch(
        keys & c10::after_autograd_keyset,
        self,
        dim,
        std::move(start),
        std::move(end),
        std::move(step));
  }
  return recorded_view<Op>(
      keys,
      sliced(self, dim, start, end, step),
      /*drops_dim=*/false,
      self,
      dim,
      start,
      end,
      step);
}

}  // namespace

void register_few_views(OpRegistry& ops) {
  ops.composed("select.int", TORCH_FN(select));
  ops.composed("slice.Tensor", TORCH_FN(slice));
  ops.above_autograd("select.int", TORCH_FN(recorded_select));
  ops.above_autograd("slice.Tensor", TORCH_FN(recorded_slice));
}

}  // namespace tessera::detail
