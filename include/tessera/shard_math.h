// Shard arithmetic: which part of a tensor each position of a mesh holds.
// Everything that depends on how a dimension is split goes through chunk().
#pragma once

#include <cstdint>

#include "tessera/export.h"
#include "tessera/spec.h"

namespace tessera {

struct Range {
  int64_t begin;
  int64_t size;
  friend bool operator==(const Range&, const Range&) = default;
};

// Part `index` of [0, n) split into `parts` as by torch.chunk: each part has
// ceil(n / parts) elements, the last ones fewer or none.
TESSERA_API Range chunk(int64_t n, int64_t parts, int64_t index);

// The sizes of all parts.
TESSERA_API Sizes chunk_sizes(int64_t n, int64_t parts);

// The range of tensor dimension `dim` (of global size `n`) that `position`
// holds. The first mesh dimension that shards it splits it, the next one splits
// each part, and so on.
TESSERA_API Range local_range(
    int64_t n,
    int64_t dim,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    int64_t position);

// The shape of the shard at `position`.
TESSERA_API Sizes local_shape(
    SizesRef sizes,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    int64_t position);

// The strides of a shard of this shape whose dimensions have the same order in
// memory as those of the global tensor.
TESSERA_API Sizes local_strides(SizesRef local_sizes, SizesRef global_strides);

// How evenly a dimension of size `n` is split by the mesh dimensions that shard
// `dim`. Each case implies the next, so `<= NonEmpty` asks for no empty part.
// A sharded dimension of size 0 is Any: its parts are equal but empty, and some
// reductions need at least one element. A dimension that is not sharded is
// Even, whatever its size.
enum class Evenness : uint8_t {
  Even,      // all parts are equal and non-empty, or there is only one
  NonEmpty,  // no part is empty
  Any,       // some parts are empty
};
TESSERA_API Evenness evenness(
    int64_t n, int64_t dim, const DeviceMesh& mesh, PlacementsRef placements);

}  // namespace tessera
