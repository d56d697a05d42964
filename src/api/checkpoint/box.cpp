#include "api/checkpoint/box.h"

#include <algorithm>
#include <limits>

#include "tessera/shard_math.h"

namespace tessera::detail {

std::string Box::str() const {
  std::string out = "[";
  for (int64_t d = 0; d < dim(); ++d) {
    if (d > 0) out += ", ";
    // A box that a damaged file names may have any numbers.
    int64_t end = 0;
    if (__builtin_add_overflow(begin[d], size[d], &end)) {
      end = std::numeric_limits<int64_t>::max();
    }
    out += std::to_string(begin[d]) + ":" + std::to_string(end);
  }
  return out + "]";
}

Box box_of(const Spec& spec, int64_t position) {
  Box box;
  for (int64_t d = 0; d < spec.dim(); ++d) {
    const auto range =
        local_range(spec.sizes[d], d, spec.mesh, spec.placements, position);
    box.begin.push_back(range.begin);
    box.size.push_back(range.size);
  }
  return box;
}

Box whole_box(SizesRef shape) {
  return {Sizes(shape.size(), 0), Sizes(shape.begin(), shape.end())};
}

Box intersection(const Box& a, const Box& b) {
  Box out;
  for (int64_t d = 0; d < a.dim(); ++d) {
    const int64_t begin = std::max(a.begin[d], b.begin[d]);
    const int64_t end =
        std::min(a.begin[d] + a.size[d], b.begin[d] + b.size[d]);
    out.begin.push_back(begin);
    out.size.push_back(std::max<int64_t>(end - begin, 0));
  }
  return out;
}

}  // namespace tessera::detail
