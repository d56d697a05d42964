// What the values of a call's offsets decide: where indices may stay sharded,
// and whether ranks were given the same.
#pragma once

#include <cstdint>

#include "embedding/pool_bags.h"

namespace tessera::detail {

// Whether the chunks of indices along the mesh dimension `m` begin where the
// chunks of bags do. Every rank has all offsets, and finds the same.
bool shards_hold_whole_bags(const BagCall& call, int64_t m);

// The fingerprint of plain offsets, which may differ from rank to rank, where
// what is sent hangs on them; 0 for others. Those of rows of equal length are
// not compared: libtorch makes them for inputs of two dimensions, by the shape.
uint64_t offsets_to_compare(const BagCall& call);

}  // namespace tessera::detail
