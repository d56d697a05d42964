// Elements of a sharded dimension, as a view takes them: if they are few, only
// these move.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "dispatch/boundary_node.h"
#include "dispatch/op_info.h"
#include "tessera/shard_math.h"
#include "tessera/spec.h"

namespace tessera::detail {

// The elements start, start + step, ... of dimension `dim`, `count` in all.
struct Elements {
  int64_t dim;
  int64_t start;
  int64_t count;
  int64_t step;

  // Of these, the ones that lie in `held`: the first one's number, and how
  // many.
  Range within(const Range& held) const {
    const auto passed = [&](int64_t position) {
      const int64_t ahead = position - start;
      return std::clamp<int64_t>((ahead + step - 1) / step, 0, count);
    };
    const int64_t first = held.begin <= start ? 0 : passed(held.begin);
    const int64_t end = held.begin + held.size;
    const int64_t last = end <= start ? 0 : passed(end);
    return {first, std::max<int64_t>(last - first, 0)};
  }

  // Those of `shard`, which holds `held`, as a view; `mine` = within(held).
  at::Tensor of_shard(
      const at::Tensor& shard, const Range& held, const Range& mine) const {
    const int64_t first = start + mine.begin * step - held.begin;
    return shard.slice(dim, first, first + (mine.size - 1) * step + 1, step);
  }
};

// The placements, with `instead` where `dim` is sharded.
Placements unsharded(
    PlacementsRef placements, int64_t dim, const Placement& instead);

// The elements on every rank. Communicates: an all_reduce of them for each mesh
// dimension that shards theirs.
at::Tensor collect(
    const OpInfo& op, const at::Tensor& self, const Elements& elements);

// The gradient of a tensor of layout `spec` of which `elements` were taken, in
// its layout; `drops_dim`: by a view without their dimension.
NodePtr elements_backward(
    SpecPtr spec, const Elements& elements, bool drops_dim);

}  // namespace tessera::detail
