// The worlds in which tests run: one body, in a simulated world of the size it
// needs, or over the processes that a launcher has started.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/mesh.h"
#include "tessera/world.h"

namespace tessera::testing {

// True where a launcher has started this program as one of several ranks.
bool over_processes();

// The world that tests share: over processes the one of all ranks, entered at
// the first call and left when the program ends; otherwise a simulated one of
// four ranks.
World& test_world();

// Calls `body` with a mesh of the first ranks, arranged in `shape`. Simulated,
// its world has just these ranks and ends with the call; over processes it is
// test_world(), and nothing happens where that is too small. Returns whether
// the body was called.
bool with_mesh(
    c10::ArrayRef<int64_t> shape,
    const std::function<void(const DeviceMesh&)>& body);

// The same for each shape of mesh_shapes(). Failures name the mesh.
void for_each_mesh(const std::function<void(const DeviceMesh&)>& body);

// As for_each_mesh, for every dimension of every mesh in turn.
void for_each_mesh_dim(
    const std::function<void(const DeviceMesh&, int64_t dim)>& body);

// Whether no rank of the mesh lives in this process. Tensors on it are then
// known only by their layout: there is nothing to compare.
bool outside(const DeviceMesh& mesh);

// 1, 2, 3, 4, 2x2 and 2x2x2 ranks.
const std::vector<std::vector<int64_t>>& mesh_shapes();

}  // namespace tessera::testing
