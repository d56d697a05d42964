// Values of a view go to the ranks that hold its elements.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "dispatch/tensor.h"
#include "dispatch/view_geometry.h"

namespace tessera::detail {

// Writes `values`, distributed and of the view's shape, into the shards of the
// base. What a rank holds itself is not sent; what is sharded otherwise goes to
// the owners, and to nobody else where the view is a box of each shard.
// Communicates so, for the op `cause`. Throws c10::NotImplementedError where
// the base cannot be written: a pending lookup, or a tensor of which several
// elements are one in memory.
void write_into_base(
    const DistributedMeta& base,
    const ViewGeometry& view,
    const at::Tensor& values,
    std::string_view cause);

}  // namespace tessera::detail
