// Where the elements of a view are among those of its base. Arithmetic on
// sizes and strides: no data, no communication.
#pragma once

#include <optional>
#include <vector>

#include "tessera/shard_math.h"
#include "tessera/spec.h"

namespace tessera::detail {

// A view as strides say it: element i is `offset` + sum of i[j] * strides[j]
// elements behind the base's first one.
struct ViewGeometry {
  Sizes sizes;
  Sizes strides;
  int64_t offset = 0;

  friend bool operator==(const ViewGeometry&, const ViewGeometry&) = default;

  int64_t numel() const;
  // Whether several elements of the view are one of the base's for certain.
  bool repeats_elements() const;
  // Whether they may be, as those of windows that overlap.
  bool may_repeat_elements() const;
  // Whether its elements fill a range of memory, each once.
  bool is_dense() const;
  // Whether they do so in their order.
  bool is_row_major() const;
};

// The dimensions of more than one element, from the largest stride to the
// smallest, if each stride is larger than all that the smaller ones reach, as
// in memory without overlaps. Those that were expanded, of stride 0, are left
// out. Nothing otherwise.
std::optional<std::vector<size_t>> nested_dims(
    SizesRef sizes, SizesRef strides);

// For one dimension of the base: its index is `first` + sum of
// i[j] * steps[j].
struct BaseIndex {
  int64_t first = 0;
  Sizes steps;  // by dimension of the view
};

// How the index of each dimension of the base follows from the indices of the
// view. Nothing where it is no sum of multiples, as of a dimension that was
// flattened out of two, or where the base's strides do not tell its dimensions
// apart.
std::optional<std::vector<BaseIndex>> affine_indices(
    const ViewGeometry& view, SizesRef base_sizes, SizesRef base_strides);

// The one dimension of the view that `index` depends on. Nothing for none;
// Requires: not several.
std::optional<int64_t> driving_dim(const BaseIndex& index);

// Whether the elements of the view that one shard of the base holds are a box:
// not where two dimensions of the view, as unfold makes them, walk along one
// that is sharded.
bool are_boxes(const std::vector<BaseIndex>& indices, PlacementsRef base);

// The elements of a view that are in one shard of its base: a range of each
// dimension of the view.
struct OwnedBox {
  std::vector<Range> ranges;
  bool empty = false;
};

// The box of `position`. Requires: are_boxes().
OwnedBox owned_box(
    const std::vector<BaseIndex>& indices,
    const ViewGeometry& view,
    const Spec& base,
    int64_t position);

// Of the elements first, first + step, ... of a dimension of the base, `size`
// in all, those that are in `held`.
Range owned_range(int64_t first, int64_t step, int64_t size, const Range& held);

}  // namespace tessera::detail
