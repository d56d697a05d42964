// The elements of a view where they are: in the shards of its base.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "dispatch/tensor.h"
#include "dispatch/view_geometry.h"

namespace tessera::detail {

class OwnedElements {
 public:
  // Nothing where the base's strides do not tell which elements the view has.
  // `base` outlives the result.
  static std::optional<OwnedElements> of(
      const DistributedMeta& base, const ViewGeometry& view);

  // Whether each shard holds a box of the view. Otherwise its elements are
  // found one by one, and seen as a tensor of one dimension.
  bool are_boxes() const { return are_boxes_; }
  // How the base's indices follow from the view's. Requires: are_boxes().
  const std::vector<BaseIndex>& indices() const { return indices_; }
  const ViewGeometry& view() const { return view_; }

  // The elements of local shard `k`, empty if it has none: in the base's
  // memory, or, of no box, copied from there.
  at::Tensor elements(size_t k) const;
  // Writes what `elements` gave back, where that was a copy.
  void put(size_t k, const at::Tensor& elements) const;
  // The same elements of a tensor of the view's shape, or of a part of it that
  // begins at `origin`. Requires: are_boxes(), where there is an origin.
  at::Tensor part_of(
      const at::Tensor& whole, size_t k, SizesRef origin = {}) const;

 private:
  // The elements of a view one by one, in its order.
  struct Places {
    at::Tensor of_view;    // which of them the shard holds
    at::Tensor in_memory;  // where, from the shard's first element on
  };

  OwnedElements(const DistributedMeta& base, const ViewGeometry& view)
      : base_(&base), view_(view) {}
  void find_boxes();
  void find_places(c10::ArrayRef<size_t> dims);
  Range held(size_t d, size_t k) const;

  const DistributedMeta* base_;
  ViewGeometry view_;
  bool are_boxes_ = true;
  std::vector<BaseIndex> indices_;
  std::vector<OwnedBox> boxes_;
  std::vector<Places> places_;
};

}  // namespace tessera::detail
