// The order of lists of the functions on ShardedTensors: by rank, where a mesh
// may have its ranks in any order.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/dtensor.h"
#include "tessera/mesh.h"
#include "tessera/sharded.h"

namespace tessera::detail {

// Whether the spec gives a rank several chunks.
bool names_a_rank_twice(const ChunkShardingSpec& spec);

// The mesh's local positions, in ascending order of rank.
std::vector<int64_t> positions_by_rank(const DeviceMesh& mesh);

// For each of the mesh's local positions, in their order, where it stands in
// positions_by_rank().
std::vector<size_t> places_by_rank(const DeviceMesh& mesh);

// Tensors in ascending order of rank, in the order of the mesh's local
// positions. Throws c10::ValueError, tagged with `caller`, unless there is one
// for each.
std::vector<at::Tensor> by_position(
    const DeviceMesh& mesh, at::TensorList by_rank, const char* caller);

// The part of a replicated tensor, which each rank of `mesh` holds, that
// Shard(dim) on `mesh` gives it; memory of its own. Does not communicate.
at::Tensor own_parts(
    const DTensor& replicated, const DeviceMesh& mesh, int64_t dim);

}  // namespace tessera::detail
