#include "dispatch/view_geometry.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace tessera::detail {

std::optional<std::vector<size_t>> nested_dims(
    SizesRef sizes, SizesRef strides) {
  std::vector<size_t> dims;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && strides[d] != 0) {
      dims.push_back(d);
    }
  }
  std::sort(dims.begin(), dims.end(), [&](size_t a, size_t b) {
    return strides[a] > strides[b];
  });
  int64_t reach = 0;
  for (size_t i = dims.size(); i-- > 0;) {
    if (strides[dims[i]] <= reach) {
      return std::nullopt;
    }
    reach += (sizes[dims[i]] - 1) * strides[dims[i]];
  }
  return dims;
}

namespace {

// A distance in memory as steps along the dimensions.
std::optional<Sizes> steps_of(
    int64_t distance, c10::ArrayRef<size_t> dims, SizesRef strides) {
  Sizes steps(strides.size(), 0);
  for (const size_t d : dims) {
    steps[d] = distance / strides[d];
    distance %= strides[d];
  }
  if (distance != 0) {
    return std::nullopt;
  }
  return steps;
}

}  // namespace

int64_t ViewGeometry::numel() const {
  return std::accumulate(
      sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

bool ViewGeometry::repeats_elements() const {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && strides[d] == 0) {
      return true;
    }
  }
  return false;
}

bool ViewGeometry::may_repeat_elements() const {
  return repeats_elements() || !nested_dims(sizes, strides).has_value();
}

bool ViewGeometry::is_row_major() const {
  int64_t expected = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] != 1 && strides[d] != expected) {
      return false;
    }
    expected *= sizes[d];
  }
  return true;
}

bool ViewGeometry::is_dense() const {
  const auto dims = nested_dims(sizes, strides);
  if (!dims.has_value() || repeats_elements()) {
    return false;
  }
  int64_t expected = 1;
  for (size_t i = dims->size(); i-- > 0;) {
    const size_t d = (*dims)[i];
    if (strides[d] != expected) {
      return false;
    }
    expected *= sizes[d];
  }
  return true;
}

std::optional<std::vector<BaseIndex>> affine_indices(
    const ViewGeometry& view, SizesRef base_sizes, SizesRef base_strides) {
  const auto dims = nested_dims(base_sizes, base_strides);
  if (!dims.has_value()) {
    return std::nullopt;
  }
  const auto first = steps_of(view.offset, *dims, base_strides);
  if (!first.has_value()) {
    return std::nullopt;
  }
  std::vector<BaseIndex> indices(base_sizes.size());
  Sizes last = *first;
  for (size_t d = 0; d < indices.size(); ++d) {
    indices[d].first = (*first)[d];
    indices[d].steps.resize(view.sizes.size(), 0);
  }
  for (size_t j = 0; j < view.sizes.size(); ++j) {
    if (view.sizes[j] <= 1) {
      continue;
    }
    const auto steps = steps_of(view.strides[j], *dims, base_strides);
    if (!steps.has_value()) {
      return std::nullopt;
    }
    for (size_t d = 0; d < indices.size(); ++d) {
      indices[d].steps[j] = (*steps)[d];
      last[d] += (*steps)[d] * (view.sizes[j] - 1);
    }
  }
  for (size_t d = 0; d < indices.size(); ++d) {
    if (last[d] >= base_sizes[d]) {
      return std::nullopt;
    }
  }
  return indices;
}

std::optional<int64_t> driving_dim(const BaseIndex& index) {
  for (size_t j = 0; j < index.steps.size(); ++j) {
    if (index.steps[j] != 0) {
      return static_cast<int64_t>(j);
    }
  }
  return std::nullopt;
}

bool are_boxes(const std::vector<BaseIndex>& indices, PlacementsRef base) {
  return std::all_of(base.begin(), base.end(), [&](const Placement& p) {
    return !p.is_shard() || std::ranges::count_if(
                                indices[p.dim()].steps,
                                [](int64_t step) { return step != 0; }) <= 1;
  });
}

Range owned_range(
    int64_t first, int64_t step, int64_t size, const Range& held) {
  // How many elements come before `bound`.
  const auto before = [&](int64_t bound) {
    const int64_t ahead = bound - first;
    return ahead <= 0 ? 0 : std::min((ahead + step - 1) / step, size);
  };
  const int64_t begin = before(held.begin);
  const int64_t end = before(held.begin + held.size);
  return {begin, std::max<int64_t>(end - begin, 0)};
}

OwnedBox owned_box(
    const std::vector<BaseIndex>& indices,
    const ViewGeometry& view,
    const Spec& base,
    int64_t position) {
  OwnedBox box;
  for (const int64_t size : view.sizes) {
    box.ranges.push_back({0, size});
  }
  for (size_t d = 0; d < indices.size(); ++d) {
    const Range held = local_range(
        base.sizes[d],
        static_cast<int64_t>(d),
        base.mesh,
        base.placements,
        position);
    if (held.size == base.sizes[d]) {
      continue;
    }
    const auto& [first, steps] = indices[d];
    const auto driver = driving_dim(indices[d]);
    if (!driver.has_value()) {
      box.empty |= first < held.begin || first >= held.begin + held.size;
      continue;
    }
    auto& range = box.ranges[*driver];
    const Range owned =
        owned_range(first, steps[*driver], view.sizes[*driver], held);
    const int64_t begin = std::max(range.begin, owned.begin);
    const int64_t end =
        std::min(range.begin + range.size, owned.begin + owned.size);
    range = {begin, std::max<int64_t>(end - begin, 0)};
  }
  for (const auto& range : box.ranges) {
    box.empty |= range.size == 0;
  }
  return box;
}

}  // namespace tessera::detail
