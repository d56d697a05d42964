// Ragged shards: ranks that read data of their own hold as many rows as they
// happened to read. The few rows that are in excess of torch.chunk's parts move
// to the ranks that lack them; the order of the rows stays. Which ones these
// are is planned here; move_rows.h carries it out.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/collectives.h"
#include "tessera/mesh.h"
#include "tessera/placement.h"

namespace tessera::detail {

// The shapes of all shards of the sub-mesh that this process's ranks are in,
// row-major over the mesh's coordinates. `locals` are the shards that live here
// and have one number of dimensions on every rank. Communicates.
// Throws c10::ValueError if simulated slices of a mesh hold different shapes.
std::vector<Sizes> gather_shapes(const DeviceMesh& mesh, ShardsRef locals);

// Parts of a tensor, and gather_shapes' of them.
struct RaggedShapes {
  const DeviceMesh& mesh;
  PlacementsRef placements;
  c10::ArrayRef<Sizes> shapes;
};

// The shape of the tensor whose parts, in the order of the ranks, have these
// shapes. Throws c10::ValueError where the parts differ in a dimension that is
// not sharded, or ranks that share a part of it disagree on its size.
Sizes joined_shape(const RaggedShapes& parts);

// Rows that move between the ranks of the groups along one mesh dimension.
struct RowStep {
  int64_t mesh_dim;
  int64_t dim;  // the tensor's: what is called a row
  // By local position: how many rows go to, and come from, each rank.
  std::vector<Parts> send;
  std::vector<Parts> receive;
  // By local position: the rows, sorted by where they go. Empty where they lie
  // so already.
  std::vector<std::vector<int64_t>> order;
};
using RowSteps = std::vector<RowStep>;

// What makes parts of these shapes torch.chunk's. Empty where they are.
RowSteps plan_rows(const RaggedShapes& parts);

}  // namespace tessera::detail
