#include "ops/own_parts.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/broadcast_tensors.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "dispatch/grad_layout.h"
#include "dispatch/run_by_rule.h"
#include "dispatch/tensor.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

bool is_replicated(const at::Tensor& tensor) {
  const auto& placements = distributed_meta(tensor).spec->placements;
  return std::all_of(
      placements.begin(), placements.end(), [](const Placement& p) {
        return p.is_replicate();
      });
}

const at::Tensor& shard_of(const at::Tensor& tensor, size_t k) {
  return is_dtensor(tensor) ? current_shards(tensor)[k] : tensor;
}

void check_bounds(const at::Tensor& index, int64_t dim, int64_t size) {
  if (index.numel() == 0) {
    return;
  }
  const auto [low, high] = at::aminmax(index.to(at::kLong));
  const auto bad = [&](int64_t value) {
    TORCH_CHECK_INDEX(
        value >= -size && value < size,
        "index ",
        value,
        " is out of bounds for dimension ",
        dim,
        " with size ",
        size);
  };
  bad(low.item<int64_t>());
  bad(high.item<int64_t>());
}

// One rank's part of a write by integers, in its shard.
class OwnPart {
 public:
  OwnPart(const at::Tensor& self, const Indices& integers, size_t k)
      : spec_(*distributed_meta(self).spec),
        position_(spec_.mesh.local_positions()[k]),
        shard_(current_shards(self)[k]) {
    std::vector<at::Tensor> indices;
    for (size_t d = 0; d < integers.size(); ++d) {
      const std::optional<at::Tensor> index = integers.get(d);
      if (is_given(index)) {
        dims_.push_back(static_cast<int64_t>(d));
        indices.push_back(shard_of(*index, k).to(at::kLong));
        check_bounds(indices.back(), dims_.back(), spec_.sizes[d]);
      }
    }
    indices_ = at::broadcast_tensors(indices);
  }

  void write(const at::Tensor& values, bool accumulate) const {
    const auto dims = static_cast<int64_t>(dims_.size());
    auto here = at::ones(indices_[0].sizes(), at::kBool);
    std::vector<at::Tensor> local;
    for (size_t i = 0; i < dims_.size(); ++i) {
      const int64_t size = spec_.sizes[dims_[i]];
      const Range held = held_range(dims_[i]);
      const auto index =
          at::where(indices_[i].lt(0), indices_[i] + size, indices_[i]);
      here.logical_and_(index.ge(held.begin));
      here.logical_and_(index.lt(held.begin + held.size));
      local.push_back(index - held.begin);
    }
    const auto mine = here.flatten().nonzero().flatten();
    c10::List<std::optional<at::Tensor>> chosen;
    for (auto& index : local) {
      chosen.push_back(index.flatten().index_select(0, mine));
    }
    // The indexed dimensions come first: then the values of an entry are one.
    std::vector<int64_t> from(dims_.begin(), dims_.end());
    std::vector<int64_t> to(dims);
    std::iota(to.begin(), to.end(), 0);
    shard_.movedim(from, to).index_put_(
        chosen, own_values(values, mine), accumulate);
  }

 private:
  Range held_range(int64_t dim) const {
    return local_range(
        spec_.sizes[dim], dim, spec_.mesh, spec_.placements, position_);
  }

  // The values of the entries `mine`, entries first, of the elements that the
  // shard has of the other dimensions.
  at::Tensor own_values(
      const at::Tensor& values, const at::Tensor& mine) const {
    if (values.dim() == 0) {
      return values;
    }
    // The entries stand where the indexed dimensions are, or, if these are not
    // neighbours, in front.
    const auto index_sizes = indices_[0].sizes();
    const bool neighbours =
        dims_.back() - dims_.front() + 1 == static_cast<int64_t>(dims_.size());
    const int64_t place = neighbours ? dims_.front() : 0;
    std::vector<int64_t> others;
    for (int64_t d = 0; d < spec_.dim(); ++d) {
      if (std::find(dims_.begin(), dims_.end(), d) == dims_.end()) {
        others.push_back(d);
      }
    }
    std::vector<int64_t> sizes(others.size());
    std::transform(others.begin(), others.end(), sizes.begin(), [&](int64_t d) {
      return spec_.sizes[d];
    });
    sizes.insert(sizes.begin() + place, index_sizes.begin(), index_sizes.end());
    TORCH_CHECK(
        at::is_expandable_to(values.sizes(), sizes),
        "shape mismatch: value tensor of shape ",
        values.sizes(),
        " cannot be broadcast to indexing result of shape ",
        at::IntArrayRef(sizes));
    auto entries = values.expand(sizes);
    for (size_t i = 0; i < index_sizes.size(); ++i) {
      const auto to = static_cast<int64_t>(i);
      entries = entries.movedim(place + to, to);
    }
    entries =
        index_sizes.empty()
            ? entries.unsqueeze(0)
            : entries.flatten(0, static_cast<int64_t>(index_sizes.size()) - 1);
    for (size_t i = 0; i < others.size(); ++i) {
      const Range held = held_range(others[i]);
      entries =
          entries.narrow(static_cast<int64_t>(i) + 1, held.begin, held.size);
    }
    return entries.index_select(0, mine);
  }

  const Spec& spec_;
  const int64_t position_;
  const at::Tensor shard_;
  std::vector<int64_t> dims_;
  std::vector<at::Tensor> indices_;
};

}  // namespace

bool knows_own_parts(
    const at::Tensor& self, const Indices& integers, const at::Tensor& values) {
  const auto& placements = distributed_meta(self).spec->placements;
  // A bad index is to be found before the write: the device does not wait.
  if (!self.is_cpu() ||
      std::any_of(placements.begin(), placements.end(), [](const auto& p) {
        return p.is_partial();
      })) {
    return false;
  }
  std::vector<at::Tensor> given;
  for (const std::optional<at::Tensor> index : integers) {
    if (!is_given(index)) {
      continue;
    }
    if ((is_dtensor(*index) && !is_replicated(*index)) ||
        (index->scalar_type() != at::kLong &&
         index->scalar_type() != at::kInt)) {
      return false;
    }
    // The general way has the words for those that do not fit.
    for (const auto& other : given) {
      if (!at::are_expandable(index->sizes(), other.sizes())) {
        return false;
      }
    }
    given.push_back(*index);
  }
  return !given.empty() &&
         static_cast<int64_t>(integers.size()) <= self.dim() &&
         values.scalar_type() == self.scalar_type() &&
         (!is_dtensor(values) || is_replicated(values));
}

void put_own_parts(
    const at::Tensor& self,
    const Indices& integers,
    const at::Tensor& values,
    bool accumulate) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (is_dtensor(values)) {
    keep_grad_layouts(values);
  }
  const size_t count = distributed_meta(self).shard_count();
  for (size_t k = 0; k < count; ++k) {
    OwnPart(self, integers, k).write(shard_of(values, k), accumulate);
  }
}

}  // namespace tessera::detail
