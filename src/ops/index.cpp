// Indexing by tensors: x[i, j], x[mask] and writing there. Rules know the sizes
// of results only when they see integers; a mask is made into integers first,
// or, where one number is written, into a masked_fill, which moves no data.
#include <ATen/core/Tensor.h>
#include <ATen/ops/index_ops.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/nonzero.h>

#include <algorithm>

#include "dispatch/plain_args.h"
#include "dispatch/run_by_rule.h"
#include "dispatch/tensor.h"
#include "ops/all_ops.h"
#include "ops/by_formula.h"
#include "ops/few_rows.h"
#include "ops/own_parts.h"
#include "tessera/language.h"

namespace tessera::detail {
namespace {

bool is_mask(const at::Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

// Whether a mask covers the dimensions of `self` from `first` on.
bool covers(const at::Tensor& mask, const at::Tensor& self, int64_t first) {
  return first + mask.dim() <= self.dim() &&
         mask.sizes() == self.sizes().slice(first, mask.dim());
}

// The indices with, in place of each mask, an index for each of its dimensions.
// Communicates where there is a mask: every rank sees all of it.
Indices without_masks(
    const OpInfo& op, const at::Tensor& self, const Indices& indices) {
  Indices integers;
  for (const std::optional<at::Tensor> index : indices) {
    if (!is_given(index) || !is_mask(*index)) {
      integers.push_back(index);
      continue;
    }
    const auto first = static_cast<int64_t>(integers.size());
    TORCH_CHECK_INDEX(
        covers(*index, self, first),
        "[",
        op.display_name,
        "] expected a mask of the shape of the dimensions that it indexes, "
        "from dimension ",
        first,
        " on, but the mask is of shape ",
        index->sizes(),
        " and the tensor of shape ",
        self.sizes());
    const auto places = at::nonzero(*index);
    for (int64_t d = 0; d < index->dim(); ++d) {
      integers.push_back(places.select(1, d));
    }
  }
  return integers;
}

// The tensor in another shape. A copy: views that are made down here do not
// count the writes of their base, and what is a copied view would seem old.
at::Tensor reshaped(const at::Tensor& tensor, at::IntArrayRef sizes) {
  return tensor.sizes() == sizes ? tensor : tensor.clone().view(sizes);
}

// The mask, in a shape that broadcasts to `self`, if the call writes one number
// wherever a mask says so. Undefined if it does anything else.
at::Tensor filled_mask(
    const at::Tensor& self,
    const Indices& indices,
    const at::Tensor& values,
    bool accumulate) {
  if (accumulate || indices.size() != 1 || values.numel() != 1 ||
      values.scalar_type() != self.scalar_type()) {
    return {};
  }
  const std::optional<at::Tensor> mask = indices.get(0);
  if (!is_given(mask) || !is_mask(*mask) || !covers(*mask, self, 0)) {
    return {};
  }
  auto sizes = mask->sizes().vec();
  sizes.resize(self.dim(), 1);
  return reshaped(mask->to(at::kBool), sizes);
}

// Whether Python has no object of the tensor. Then torch made it of a list of
// numbers, x[[0, 1]], which is the same on every rank as other numbers are.
// Requires: speaks_python().
bool is_literal(const at::Tensor& tensor) {
  const auto has_object = [](const auto& slot) {
    if constexpr (requires { slot.load_pyobj(); }) {
      return slot.load_pyobj() != nullptr;
    } else {  // torch 2.11
      return slot.check_pyobj().has_value();
    }
  };
  return !has_object(*tensor.unsafeGetTensorImpl()->pyobj_slot());
}

// The indices with literal ones replicated, as numbers are.
Indices with_literals(const at::Tensor& self, const Indices& indices) {
  if (!speaks_python() || !is_dtensor(self)) {
    return indices;
  }
  const auto& mesh = distributed_meta(self).spec->mesh;
  Indices result;
  for (const std::optional<at::Tensor> index : indices) {
    if (!is_given(index) || is_dtensor(*index) || index->dim() == 0 ||
        !is_literal(*index)) {
      result.push_back(index);
      continue;
    }
    result.push_back(replicated(mesh, *index));
  }
  return result;
}

// Plain tensors among the arguments are refused here, before they meet others.
template <typename... Args>
void admit(const OpInfo& op, const Args&... args) {
  torch::jit::Stack stack;
  torch::jit::push(stack, args...);
  admit_plain_tensors(op, stack);
}

// The dimension that is indexed, where only one is, by integers that ask for
// few of its elements.
std::optional<int64_t> few_indexed(
    const at::Tensor& self, const Indices& indices) {
  std::optional<int64_t> dim;
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::optional<at::Tensor> index = indices.get(i);
    if (!is_given(index)) {
      continue;
    }
    if (dim.has_value() || is_mask(*index) ||
        !asks_for_few(self, static_cast<int64_t>(i), index->numel())) {
      return std::nullopt;
    }
    dim = static_cast<int64_t>(i);
  }
  return dim;
}

at::Tensor look_up_few(
    const at::Tensor& self, int64_t dim, const Indices& indices) {
  static const OpInfo& op = aten_op("index", "Tensor");
  admit(op, self, indices);
  const at::Tensor index = *indices.get(dim);
  // Negative ones count from the end.
  return look_up(op, self, dim, index.add(index.lt(0).mul(self.size(dim))));
}

at::Tensor index(const at::Tensor& self, const Indices& given) {
  static const OpInfo& op = aten_op("index", "Tensor");
  const auto indices = with_literals(self, given);
  if (const auto dim = few_indexed(self, indices)) {
    return look_up_few(self, *dim, indices);
  }
  admit(op, self, indices);
  return run_by_rule(op, self, without_masks(op, self, indices))[0].toTensor();
}

// In the place of the formula, which knows only the sizes of `self`.
at::Tensor recorded_index(
    c10::DispatchKeySet keys, const at::Tensor& self, const Indices& given) {
  const auto indices = with_literals(self, given);
  if (const auto dim = few_indexed(self, indices)) {
    return look_up_few(self, *dim, indices);
  }
  return by_formula<at::_ops::index_Tensor>(keys, self, indices);
}

at::Tensor index_put(
    const at::Tensor& self,
    const Indices& given,
    const at::Tensor& values,
    bool accumulate) {
  static const OpInfo& op = aten_op("index_put");
  const auto indices = with_literals(self, given);
  admit(op, self, indices, values, accumulate);
  const auto mask = filled_mask(self, indices, values, accumulate);
  if (mask.defined()) {
    return at::masked_fill(self, mask, reshaped(values, {}));
  }
  const auto integers = without_masks(op, self, indices);
  return run_by_rule(op, self, integers, values, accumulate)[0].toTensor();
}

// Whether every rank may write its shard as it lies: it is whole, but for
// dimensions behind those that are indexed.
bool writes_own_shard(const at::Tensor& self, const Indices& integers) {
  const auto indexed = static_cast<int64_t>(integers.size());
  const auto& placements = distributed_meta(self).spec->placements;
  return std::all_of(
      placements.begin(), placements.end(), [&](const Placement& p) {
        return p.is_replicate() || (p.is_shard() && p.dim() >= indexed);
      });
}

at::Tensor& index_put_(
    at::Tensor& self,
    const Indices& given,
    const at::Tensor& values,
    bool accumulate) {
  static const OpInfo& op = aten_op("index_put_");
  const auto indices = with_literals(self, given);
  // In a derivative a plain `self` becomes a distributed one.
  admit(op, self, indices, values, accumulate);
  begin_write(self, op.display_name);
  const auto mask = filled_mask(self, indices, values, accumulate);
  if (mask.defined()) {
    return self.masked_fill_(mask, reshaped(values, {}));
  }
  const auto integers = without_masks(op, self, indices);
  if (knows_own_parts(self, integers, values)) {
    put_own_parts(self, integers, values, accumulate);
    end_write(self, op.name);
    return self;
  }
  if (writes_own_shard(self, integers)) {
    run_by_rule(op, self, integers, values, accumulate);
    return self;
  }
  // Indices may point at any rank: written as a whole, each keeps its part.
  return self.copy_(detail::index_put(self, integers, values, accumulate));
}

// What derivatives call. They vouch for their indices, which saves nothing
// here.
at::Tensor& index_put_impl_(
    at::Tensor& self,
    const Indices& indices,
    const at::Tensor& values,
    bool accumulate,
    bool /*unsafe*/) {
  return detail::index_put_(self, indices, values, accumulate);
}

}  // namespace

void register_index(OpRegistry& ops) {
  ops.composed("index.Tensor", &index);
  ops.above_autograd("index.Tensor", TORCH_FN(recorded_index));
  ops.composed("index_put", &index_put);
  ops.composed("index_put_", &index_put_);
  ops.composed("_index_put_impl_", &index_put_impl_);
}

}  // namespace tessera::detail
