#include "tessera/shard_math.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

namespace tessera {
namespace {

int64_t ceil_div(int64_t n, int64_t parts) {
  return n / parts + (n % parts != 0 ? 1 : 0);
}

// Without the checks of chunk(), for callers whose mesh vouches for them.
Range chunk_unchecked(int64_t n, int64_t parts, int64_t index) {
  const int64_t most = ceil_div(n, parts);
  const int64_t begin = std::min(n, index * most);
  return {begin, std::min(most, n - begin)};
}

void check_parts(const char* caller, int64_t n, int64_t parts) {
  TORCH_CHECK_VALUE(
      n >= 0 && parts >= 1,
      "[",
      caller,
      "] expected a size of 0 or more and at least one part, but got size ",
      n,
      " and ",
      parts,
      " parts");
}

// Numbers that order the dimensions from the outermost (largest) inwards. An
// expanded dimension (stride 0) has no place of its own in memory: it goes
// right outside its neighbour, which makes an expanded contiguous tensor
// contiguous.
Sizes order_in_memory(SizesRef strides) {
  Sizes order_by;
  order_by.append(strides.begin(), strides.end());
  for (size_t d = order_by.size(); d-- > 1;) {
    if (order_by[d - 1] == 0) {
      order_by[d - 1] = order_by[d];
    }
  }
  return order_by;
}

// Whether no part is empty when each of `n`'s parts is split again by the next
// of `splits`. Splitting gives two sizes at most (the full and the last), but a
// smaller size may fill all parts where a larger does not (3 and 4, in 3), so
// both are followed.
bool fills_all(int64_t n, SizesRef splits) {
  if (splits.empty()) {
    return n > 0;
  }
  const int64_t parts = splits.front();
  const int64_t last = chunk_unchecked(n, parts, parts - 1).size;
  if (last == 0) {
    return false;
  }
  const int64_t first = ceil_div(n, parts);
  return fills_all(first, splits.slice(1)) &&
         (last == first || fills_all(last, splits.slice(1)));
}

}  // namespace

Range chunk(int64_t n, int64_t parts, int64_t index) {
  check_parts("chunk", n, parts);
  TORCH_CHECK_INDEX(
      index >= 0 && index < parts,
      "[chunk] expected a part in 0 to ",
      parts - 1,
      ", but got ",
      index);
  return chunk_unchecked(n, parts, index);
}

Sizes chunk_sizes(int64_t n, int64_t parts) {
  check_parts("chunk_sizes", n, parts);
  Sizes sizes(parts);
  for (int64_t i = 0; i < parts; ++i) {
    sizes[i] = chunk_unchecked(n, parts, i).size;
  }
  return sizes;
}

Range local_range(
    int64_t n,
    int64_t dim,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    int64_t position) {
  Range range{0, n};
  for (size_t i = 0; i < placements.size(); ++i) {
    if (!placements[i].is_shard(dim)) {
      continue;
    }
    const auto mesh_dim = static_cast<int64_t>(i);
    const Range part = chunk_unchecked(
        range.size, mesh.size(mesh_dim), mesh.coordinate(position, mesh_dim));
    range = {range.begin + part.begin, part.size};
  }
  return range;
}

Sizes local_shape(
    SizesRef sizes,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    int64_t position) {
  Sizes local(sizes.begin(), sizes.end());
  for (size_t i = 0; i < placements.size(); ++i) {
    if (!placements[i].is_shard()) {
      continue;
    }
    const auto mesh_dim = static_cast<int64_t>(i);
    int64_t& size = local[placements[i].dim()];
    size = chunk_unchecked(
               size, mesh.size(mesh_dim), mesh.coordinate(position, mesh_dim))
               .size;
  }
  return local;
}

Sizes local_strides(SizesRef local_sizes, SizesRef global_strides) {
  TORCH_CHECK_VALUE(
      local_sizes.size() == global_strides.size(),
      "[local_strides] expected one stride a dimension, but got sizes ",
      local_sizes,
      " and strides ",
      global_strides);
  const Sizes order_by = order_in_memory(global_strides);
  if (std::is_sorted(order_by.rbegin(), order_by.rend())) {
    return row_major_strides(local_sizes);
  }
  Sizes order(order_by.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return order_by[a] > order_by[b];
  });
  Sizes strides(order.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= std::max<int64_t>(local_sizes[order[i]], 1);
  }
  return strides;
}

Evenness evenness(
    int64_t n, int64_t dim, const DeviceMesh& mesh, PlacementsRef placements) {
  Sizes splits;
  int64_t parts = 1;
  for (size_t i = 0; i < placements.size(); ++i) {
    if (placements[i].is_shard(dim)) {
      splits.push_back(mesh.size(static_cast<int64_t>(i)));
      parts *= splits.back();
    }
  }
  // What is not split is its only part, whatever its size.
  if (parts == 1 || (n > 0 && n % parts == 0)) {
    return Evenness::Even;
  }
  return fills_all(n, splits) ? Evenness::NonEmpty : Evenness::Any;
}

}  // namespace tessera
