#include "ops/as_strided.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/alias_ops.h>
#include <ATen/ops/as_strided_ops.h>

#include <algorithm>

#include "dispatch/copied_view.h"
#include "dispatch/fallback.h"
#include "dispatch/kernel.h"
#include "dispatch/tensor.h"
#include "ops/by_formula.h"

namespace tessera::detail {

namespace {

bool is_replicated(const Spec& spec) {
  return std::all_of(
      spec.placements.begin(),
      spec.placements.end(),
      [](const Placement& placement) { return placement.is_replicate(); });
}

// Whether the shards stand in memory as the whole tensor would.
bool has_its_strides(const at::Tensor& self) {
  const auto& shards = current_shards(self);
  return std::all_of(shards.begin(), shards.end(), [&](const auto& shard) {
    return shard.strides() == self.strides();
  });
}

// Whether the tensor begins where its memory begins: an offset counts from
// there, and the shards of a view may be copies without the rest.
bool begins_its_memory(const at::Tensor& self) {
  const auto& shards = current_shards(self);
  return (!self.is_view() || self._base().numel() == self.numel()) &&
         std::all_of(shards.begin(), shards.end(), [](const auto& shard) {
           return shard.storage_offset() == 0;
         });
}

// Whether the call takes the tensor as it is. Requires: an offset counts from
// where the tensor begins.
bool takes_all(
    const at::Tensor& self,
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    const std::optional<c10::SymInt>& storage_offset) {
  return self.sym_sizes() == size && self.sym_strides() == stride &&
         (!storage_offset.has_value() || *storage_offset == 0);
}

const OpInfo& as_strided_op() {
  static const OpInfo op(
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::as_strided", ""));
  return op;
}

// A replicated tensor of the same value whose shards have its strides.
at::Tensor in_own_strides(const at::Tensor& self) {
  const auto& spec = distributed_meta(self).spec;
  Shards shards;
  for (const auto& shard : current_shards(self)) {
    shards.push_back(in_strides(shard, spec->strides));
  }
  return make_distributed(spec, std::move(shards));
}

}  // namespace

// ATen's signatures.
// NOLINTBEGIN(performance-unnecessary-value-param)
at::Tensor as_strided(
    const at::Tensor& self,
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<c10::SymInt> storage_offset) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !storage_offset.has_value() || begins_its_memory(self),
      "[aten.as_strided.default] storage_offset counts from the beginning of a "
      "memory of which this tensor is a part: leave it away, or take "
      "contiguous() first");
  if (takes_all(self, size, stride, storage_offset)) {
    return make_alias(self);
  }
  const MadeLike mode(self);
  const auto placed = [&](at::Tensor view) {
    const int64_t begin = self.storage_offset();
    const int64_t given = storage_offset.has_value()
                              ? storage_offset->guard_int(__FILE__, __LINE__)
                              : begin;
    return placed_view(std::move(view), self, given - begin);
  };
  const auto& meta = distributed_meta(self);
  const bool whole = is_replicated(*meta.spec);
  if (whole && has_its_strides(self)) {
    const LocalOpGuard guard(/*is_view=*/true);
    Shards shards;
    for (const auto& shard : current_shards(self)) {
      shards.push_back(shard.as_strided_symint(size, stride, storage_offset));
    }
    return placed(make_distributed(
        Spec::make(
            meta.spec->mesh,
            meta.spec->placements,
            C10_AS_INTARRAYREF_SLOW(size),
            C10_AS_INTARRAYREF_SLOW(stride),
            meta.spec->dtype),
        std::move(shards),
        view_origin(self)));
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      self.is_non_overlapping_and_dense(),
      "[aten.as_strided.default] the tensor, of strides ",
      self.strides(),
      ", is part of a memory that distributed tensors do not have: take "
      "contiguous() first");
  torch::jit::Stack stack{self, size, stride, storage_offset};
  if (!MakeViewsNow::is_on() && !self.is_meta()) {
    return placed(copied_view(
        as_strided_op(),
        stack,
        Spec::make(
            meta.spec->mesh,
            Placements(meta.spec->mesh.ndim(), Replicate()),
            C10_AS_INTARRAYREF_SLOW(size),
            C10_AS_INTARRAYREF_SLOW(stride),
            meta.spec->dtype)));
  }
  if (whole) {
    const auto copy = in_own_strides(self);
    const auto view = as_strided(copy, size, stride, storage_offset);
    const auto& spec = distributed_meta(view).spec;
    const auto& shards = current_shards(view);
    return placed(make_distributed(
        spec,
        shards,
        copied_origin(as_strided_op(), stack, /*output=*/0, spec, shards)));
  }
  const LocalOpGuard guard(/*is_view=*/true);
  run_on_gathered(as_strided_op(), &stack);
  return placed(std::move(stack.back()).toTensor());
}

at::Tensor recorded_as_strided(
    c10::DispatchKeySet keys,
    const at::Tensor& self,
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<c10::SymInt> storage_offset) {
  if (is_dtensor(self) && takes_all(self, size, stride, storage_offset) &&
      (!storage_offset.has_value() || begins_its_memory(self))) {
    return by_formula<at::_ops::alias>(keys, self);
  }
  return by_formula<at::_ops::as_strided>(
      keys, self, size, stride, storage_offset);
}
// NOLINTEND(performance-unnecessary-value-param)

}  // namespace tessera::detail
