// Shard arithmetic: which part of a tensor a position of the mesh holds.
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

// Part `index` of [0, n) split into `parts`, as torch.chunk splits it: every
// part is ceil(n / parts) long, the last ones shorter or empty.
TESSERA_API Range chunk(int64_t n, int64_t parts, int64_t index);

// The sizes of all parts.
TESSERA_API Sizes chunk_sizes(int64_t n, int64_t parts);

// The range of tensor dimension `dim` (of global size `n`) that `position`
// holds: split by the first mesh dimension that shards it, then by the second.
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

// The strides a shard of this shape has when it is laid out in memory in the
// same order of dimensions as the global tensor.
TESSERA_API Sizes local_strides(SizesRef local_sizes, SizesRef global_strides);

// How evenly a dimension of size `n` is split by the mesh dimensions that shard
// `dim`. Each case implies the next, so that `<= NonEmpty` asks for no empty
// part: a size of 0, split, is Any, though its parts are equal, since a
// reduction without an identity has nothing to start from. A dimension that is
// not split is Even, whatever its size: what it gives is what one device gives.
enum class Evenness : uint8_t {
  Even,      // all parts are equal and non-empty, or there is only one part
  NonEmpty,  // no part is empty
  Any,       // some parts are empty
};
TESSERA_API Evenness evenness(
    int64_t n, int64_t dim, const DeviceMesh& mesh, PlacementsRef placements);

}  // namespace tessera
