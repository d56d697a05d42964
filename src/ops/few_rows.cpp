#include "ops/few_rows.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index_select_ops.h>

#include <algorithm>

#include "dispatch/run_by_rule.h"
#include "dispatch/tensor.h"
#include "ops/all_ops.h"
#include "ops/by_formula.h"
#include "rules/rows.h"

namespace tessera::detail {

namespace {

at::Tensor looked_up(
    const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  if (self.dim() == 2 && dim == 0) {
    return at::embedding(self, index);
  }
  // gather takes an index for each element.
  Sizes ones(self.dim(), 1);
  ones[dim] = index.numel();
  Sizes sizes(self.sizes());
  sizes[dim] = index.numel();
  auto rows =
      at::gather(self, dim, index.reshape(ones).expand(SizesRef(sizes)));
  if (index.dim() == 1) {
    return rows;
  }
  sizes.erase(sizes.begin() + dim);
  sizes.insert(sizes.begin() + dim, index.sizes().begin(), index.sizes().end());
  return rows.reshape(SizesRef(sizes));
}

const OpInfo& index_select_op() {
  static const OpInfo& op = aten_op("index_select");
  return op;
}

// index_select as a lookup, where it asks for few elements.
std::optional<at::Tensor> select_few(
    const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  dim = from_front(dim, self);
  const bool few = index.dim() == 1 && index.layout() == at::kStrided &&
                   asks_for_few(self, dim, index.size(0));
  return few ? std::optional(look_up(index_select_op(), self, dim, index))
             : std::nullopt;
}

at::Tensor index_select(
    const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  if (auto few = select_few(self, dim, index)) {
    return *std::move(few);
  }
  return run_by_rule(index_select_op(), self, dim, index)[0].toTensor();
}

at::Tensor recorded_index_select(
    c10::DispatchKeySet keys,
    const at::Tensor& self,
    int64_t dim,
    const at::Tensor& index) {
  if (auto few = select_few(self, dim, index)) {
    return *std::move(few);
  }
  return by_formula<at::_ops::index_select>(keys, self, dim, index);
}

}  // namespace

bool is_sharded_along(const at::Tensor& self, int64_t dim) {
  if (!is_dtensor(self) || self.layout() != at::kStrided || dim < 0 ||
      dim >= self.dim()) {
    return false;
  }
  const Spec& spec = *distributed_meta(self).spec;
  for (int64_t m = 0; m < spec.mesh.ndim(); ++m) {
    if (spec.placements[m].is_shard(dim) && spec.mesh.size(m) > 1) {
      return true;
    }
  }
  return false;
}

bool asks_for_few(const at::Tensor& self, int64_t dim, int64_t count) {
  if (!is_sharded_along(self, dim) || 2 * count >= self.size(dim)) {
    return false;
  }
  const Spec& spec = *distributed_meta(self).spec;
  // What is collected is a pending sum (of bools a maximum), and reductions of
  // different kinds cannot be pending together.
  return std::none_of(
      spec.placements.begin(),
      spec.placements.end(),
      [&](const Placement& placement) {
        const bool adds_up =
            spec.dtype != at::kBool &&
            (placement == Partial() || placement == Partial(ReduceOp::Avg));
        return placement.is_partial() && !adds_up;
      });
}

at::ScalarType collected_as(at::ScalarType dtype) {
  if (adds_up(dtype)) {
    return dtype;
  }
  switch (c10::elementSize(dtype)) {
    case 1:
      return at::kByte;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

at::Tensor look_up(
    const OpInfo& op,
    const at::Tensor& self,
    int64_t dim,
    const at::Tensor& index) {
  const auto dtype = self.scalar_type();
  if (const auto bits = collected_as(dtype); bits != dtype) {
    return look_up(op, self.view(bits), dim, index).view(dtype);
  }
  try {
    return looked_up(self, dim, index);
  } catch (const c10::IndexError& error) {
    const std::string text = error.what_without_backtrace();
    const size_t name_end = text.find("] ");
    TORCH_CHECK_INDEX(
        false,
        "[",
        op.display_name,
        "] an index is out of range for dimension ",
        dim,
        " with size ",
        self.size(dim),
        ": ",
        name_end == std::string::npos ? text : text.substr(name_end + 2));
  }
}

void register_few_rows(OpRegistry& ops) {
  ops.composed("index_select", TORCH_FN(index_select));
  ops.above_autograd("index_select", TORCH_FN(recorded_index_select));
}

}  // namespace tessera::detail
