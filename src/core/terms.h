// The terms of pending reductions. A sum of half or bfloat16 numbers is rounded
// once on one device. Here every rank has a term of it, which may be larger
// than the sum: what an op leaves pending of such numbers is held in float, and
// is rounded when it has been reduced (docs/decisions/0021).
#pragma once

#include "tessera/spec.h"

namespace tessera::detail {

// The dtype in which sums of `dtype` are accumulated: float for half types.
c10::ScalarType accumulate_dtype(c10::ScalarType dtype);

// Whether ranks hold terms of a sum, an average or a product. Of a maximum or a
// minimum each term is a value, rounded as the result is.
bool holds_terms(const DeviceMesh& mesh, PlacementsRef placements);

// The dtype of the shards of a tensor that was laid out as `from` and is
// redistributed to `to`.
c10::ScalarType shard_dtype_in(const Spec& from, PlacementsRef to);

// The dtype of the shards of an op's result, which is no view.
c10::ScalarType shard_dtype_of_result(
    const DeviceMesh& mesh, PlacementsRef placements, c10::ScalarType dtype);

}  // namespace tessera::detail
