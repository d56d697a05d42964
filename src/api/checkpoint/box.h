// A box is a part of a tensor: a range of each dimension.
#pragma once

#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "tessera/spec.h"

namespace tessera::detail {

struct Box {
  Sizes begin;
  Sizes size;

  int64_t dim() const { return static_cast<int64_t>(size.size()); }
  int64_t numel() const {
    // An empty one may be longer than 2^63 in its other dimensions.
    if (std::find(size.begin(), size.end(), 0) != size.end()) return 0;
    int64_t n = 1;
    for (const int64_t s : size) n *= s;
    return n;
  }
  // "[0:4, 2:6]"
  std::string str() const;
  friend bool operator==(const Box&, const Box&) = default;
};

// The whole of a tensor.
Box whole_box(SizesRef shape);
// What a position of the mesh holds.
Box box_of(const Spec& spec, int64_t position);
// What both have. Requires: they have as many dimensions. Its size is 0 in some
// dimension where there is nothing.
Box intersection(const Box& a, const Box& b);

}  // namespace tessera::detail
