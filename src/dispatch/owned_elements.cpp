#include "dispatch/owned_elements.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace tessera::detail {

namespace {

// A shard's memory, from its first element on, as one dimension.
at::Tensor memory_of(const at::Tensor& shard) {
  int64_t span = 1;
  for (int64_t d = 0; d < shard.dim(); ++d) {
    span += (shard.size(d) - 1) * shard.stride(d);
  }
  return shard.as_strided({shard.numel() == 0 ? 0 : span}, {1});
}

// Where the elements of a view are in its base's memory, in the view's order.
at::Tensor offsets_of(const ViewGeometry& view) {
  auto offsets = at::full({}, view.offset, at::kLong);
  for (size_t j = 0; j < view.sizes.size(); ++j) {
    offsets = offsets.unsqueeze(-1) +
              at::arange(view.sizes[j], at::kLong).mul(view.strides[j]);
  }
  return offsets.flatten();
}

}  // namespace

std::optional<OwnedElements> OwnedElements::of(
    const DistributedMeta& base, const ViewGeometry& view) {
  const Spec& spec = *base.spec;
  const auto dims = nested_dims(spec.sizes, spec.strides);
  // Of a dimension that was expanded, ranks that share it hold one element.
  const bool expanded_over_ranks = std::any_of(
      spec.placements.begin(), spec.placements.end(), [&](const auto& p) {
        return p.is_shard() && spec.strides[p.dim()] == 0 &&
               spec.sizes[p.dim()] > 1;
      });
  if (!dims.has_value() || expanded_over_ranks) {
    return std::nullopt;
  }
  OwnedElements owned(base, view);
  auto indices = affine_indices(view, spec.sizes, spec.strides);
  if (indices.has_value() && detail::are_boxes(*indices, spec.placements)) {
    owned.indices_ = *std::move(indices);
    owned.find_boxes();
  } else {
    owned.are_boxes_ = false;
    owned.find_places(*dims);
  }
  return owned;
}

Range OwnedElements::held(size_t d, size_t k) const {
  const Spec& spec = *base_->spec;
  return local_range(
      spec.sizes[d],
      static_cast<int64_t>(d),
      spec.mesh,
      spec.placements,
      spec.mesh.local_positions()[k]);
}

void OwnedElements::find_boxes() {
  const Spec& spec = *base_->spec;
  for (const int64_t position : spec.mesh.local_positions()) {
    boxes_.push_back(owned_box(indices_, view_, spec, position));
  }
}

void OwnedElements::find_places(c10::ArrayRef<size_t> dims) {
  const Spec& spec = *base_->spec;
  const auto offsets = offsets_of(view_);
  for (size_t k = 0; k < spec.mesh.local_positions().size(); ++k) {
    const auto& shard = base_->unchecked_shards()[k];
    auto rest = offsets;
    auto here = at::ones(rest.sizes(), at::kBool);
    auto memory = at::zeros(rest.sizes(), at::kLong);
    for (const size_t d : dims) {
      const Range range = held(d, k);
      const auto index = rest.div(spec.strides[d], "floor");
      rest = rest.remainder(spec.strides[d]);
      here.logical_and_(index.ge(range.begin));
      here.logical_and_(index.lt(range.begin + range.size));
      memory += (index - range.begin) * shard.stride(static_cast<int64_t>(d));
    }
    if (shard.numel() == 0) {
      here.zero_();  // a dimension of one element, of which it has none
    }
    const auto mine = here.nonzero().flatten();
    places_.push_back(
        {mine.to(shard.device()),
         memory.index_select(0, mine).to(shard.device())});
  }
}

at::Tensor OwnedElements::elements(size_t k) const {
  const auto& shard = base_->unchecked_shards()[k];
  if (!are_boxes()) {
    return memory_of(shard).index_select(0, places_[k].in_memory);
  }
  const auto& box = boxes_[k];
  if (box.empty) {
    return shard.as_strided({0}, {1});
  }
  Sizes sizes;
  for (const auto& range : box.ranges) {
    sizes.push_back(range.size);
  }
  Sizes strides(sizes.size(), 0);
  int64_t offset = shard.storage_offset();
  for (size_t d = 0; d < indices_.size(); ++d) {
    const auto& [first, steps] = indices_[d];
    const int64_t stride = shard.stride(static_cast<int64_t>(d));
    int64_t index = first - held(d, k).begin;
    for (size_t j = 0; j < steps.size(); ++j) {
      index += steps[j] * box.ranges[j].begin;
      strides[j] += steps[j] * stride;
    }
    offset += index * stride;
  }
  return shard.as_strided(sizes, strides, offset);
}

void OwnedElements::put(size_t k, const at::Tensor& elements) const {
  if (!are_boxes()) {
    memory_of(base_->unchecked_shards()[k])
        .index_copy_(0, places_[k].in_memory, elements);
  }
}

at::Tensor OwnedElements::part_of(
    const at::Tensor& whole, size_t k, SizesRef origin) const {
  if (!are_boxes()) {
    return whole.flatten().index_select(0, places_[k].of_view);
  }
  if (boxes_[k].empty) {
    return whole.flatten().slice(0, 0, 0);
  }
  auto part = whole;
  for (int64_t j = 0; j < whole.dim(); ++j) {
    const Range& range = boxes_[k].ranges[j];
    const int64_t begin = range.begin - (origin.empty() ? 0 : origin[j]);
    if (begin != 0 || range.size != part.size(j)) {
      part = part.narrow(j, begin, range.size);
    }
  }
  return part;
}

}  // namespace tessera::detail
