// What a DeviceMesh points to: a root grid of ranks and the dimensions of it
// that are active. A slice keeps the root, so that positions, and with them the
// shards of a tensor, mean the same in a mesh and in its slices.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/process_context.h"

namespace tessera::detail {

struct MeshData {
  // The value: what equality and hash go by.
  std::string device_type;
  ProcessContext process_context{};
  std::vector<int64_t> root_ranks;
  std::vector<int64_t> root_shape;
  std::vector<std::string> root_names;
  // The active dimensions of the root, ascending.
  std::vector<int64_t> active;

  // What follows from it. The first three have one element an active dim.
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  // How far apart neighbours along a dimension lie in root_ranks.
  std::vector<int64_t> position_strides;
  int64_t size = 1;
  // By rank of the world; -1 for those outside the mesh.
  std::vector<int64_t> position_of_rank;
  std::vector<int64_t> local_positions;
  uint64_t hash = 0;
};

using MeshDataPtr = std::shared_ptr<const MeshData>;

// The one mesh with these values in the current world, all dimensions active.
// Throws, tagged with `caller`, as the constructor of DeviceMesh says.
MeshDataPtr intern_root_mesh(
    const char* caller,
    std::string_view device_type,
    c10::ArrayRef<int64_t> ranks,
    c10::ArrayRef<int64_t> shape,
    c10::ArrayRef<std::string> dim_names);

// The one slice of `mesh` in which these dimensions of the root are active.
// Requires: `active` is ascending and within the root.
MeshDataPtr intern_slice(const MeshData& mesh, c10::ArrayRef<int64_t> active);

// The process_context of the current world. Throws c10::Error, tagged with
// `caller`, if there is none.
ProcessContext require_process_context(const char* caller);

// The product of a mesh's extents. Throws c10::ValueError, tagged with
// `caller`, if there are none, one is not positive, or the product overflows.
int64_t checked_mesh_size(const char* caller, c10::ArrayRef<int64_t> shape);

}  // namespace tessera::detail
