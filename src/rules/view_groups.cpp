#include "rules/view_groups.h"

#include <c10/util/Exception.h>

#include <functional>
#include <numeric>
#include <utility>

namespace tessera::detail {
namespace {

Sizes dims_above_one(SizesRef sizes) {
  Sizes dims;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1) {
      dims.push_back(static_cast<int64_t>(d));
    }
  }
  return dims;
}

int64_t product(SizesRef sizes) {
  return std::accumulate(
      sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

bool same_sizes(SizesRef from, SizesRef in, SizesRef to, SizesRef out) {
  if (in.size() != out.size()) {
    return false;
  }
  for (size_t i = 0; i < in.size(); ++i) {
    if (from[in[i]] != to[out[i]]) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::vector<ViewGroup> view_groups(SizesRef from, SizesRef to) {
  const Sizes in = dims_above_one(from);
  const Sizes out = dims_above_one(to);
  std::vector<ViewGroup> groups;
  if (same_sizes(from, in, to, out)) {
    for (size_t i = 0; i < in.size(); ++i) {
      groups.push_back({{in[i]}, {out[i]}});
    }
    return groups;
  }
  if (product(from) == 0) {
    return groups;
  }
  // Take dimensions from the side that has fewer elements, until both have as
  // many: that closes a group.
  size_t i = 0;
  size_t o = 0;
  while (i < in.size() && o < out.size()) {
    ViewGroup group{{in[i]}, {out[o]}};
    int64_t taken_in = from[in[i++]];
    int64_t taken_out = to[out[o++]];
    while (taken_in != taken_out) {
      if (taken_in < taken_out) {
        TORCH_INTERNAL_ASSERT(i < in.size(), "sizes that do not match");
        group.in.push_back(in[i]);
        taken_in *= from[in[i++]];
      } else {
        TORCH_INTERNAL_ASSERT(o < out.size(), "sizes that do not match");
        group.out.push_back(out[o]);
        taken_out *= to[out[o++]];
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

Sizes inferred_sizes(Sizes sizes, int64_t numel) {
  int64_t known = 1;
  int64_t* unknown = nullptr;
  for (int64_t& size : sizes) {
    if (size == -1 && unknown == nullptr) {
      unknown = &size;
    } else {
      TORCH_CHECK(
          size >= 0, "invalid shape dimension ", size, " in ", SizesRef(sizes));
      known *= size;
    }
  }
  TORCH_CHECK(
      unknown == nullptr ? known == numel : known > 0 && numel % known == 0,
      "shape '",
      SizesRef(sizes),
      "' is invalid for input of size ",
      numel);
  if (unknown != nullptr) {
    *unknown = numel / known;
  }
  return sizes;
}

}  // namespace tessera::detail
