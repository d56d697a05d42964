// Layouts for tests: which a tensor can have, shards that make up a value, and
// the value that shards make up. Nothing here goes through the code under test:
// shards are split and joined with plain ATen ops.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tessera/dtensor.h"

namespace tessera::testing {

// `count` terms whose reduction by `op` is `value`. They differ a lot from each
// other, in sign too, so that a wrong rule does not pass by luck. Exact for
// integers, bool and half types.
std::vector<at::Tensor> reduction_terms(
    const at::Tensor& value, ReduceOp op, int64_t count, uint64_t seed);

// Whether tensors of this dtype may have such a reduction pending.
bool can_be_pending(c10::ScalarType dtype, ReduceOp op);

// The shard of each position of the mesh, whether it lives here or not.
std::vector<at::Tensor> shards_of(
    const at::Tensor& value,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    uint64_t seed);

// A distributed tensor of this value in this layout. Communicates where the
// value is scattered (no reduction pending).
DTensor laid_out(
    const at::Tensor& value,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    uint64_t seed);

// The layouts that a tensor may have on one mesh dimension: whole, sharded
// along each dimension, a pending sum, and another reduction that the seed
// picks.
std::vector<Placement> possible_placements(
    const at::Tensor& value, uint64_t seed);

// Every assignment of R, S(d) and, if asked, one kind of Partial to the mesh
// dimensions, for a tensor of `ndim` dimensions.
std::vector<Placements> layouts(
    const DeviceMesh& mesh,
    int64_t ndim,
    std::optional<ReduceOp> pending = std::nullopt);

// A layout on a mesh of any rank, drawn at random; reductions commute.
Placements random_layout(
    const at::Tensor& value, const DeviceMesh& mesh, std::mt19937_64& random);

// As "2x2", for the names of tests.
std::string mesh_name(c10::IntArrayRef shape);

// Layouts for several tensors at once: all combinations on a 1-d mesh where
// they are at most `limit`, otherwise `limit` of them drawn at random. The
// first replicates all.
std::vector<std::vector<Placements>> layouts_to_try(
    at::TensorList values, const DeviceMesh& mesh, size_t limit, uint64_t seed);

// The dtype that rounds more; one that does not round is never it.
c10::ScalarType coarser(c10::ScalarType a, c10::ScalarType b);

// How `actual` differs from `expected`: dtype, shape, or values by more than
// rounding to their dtype, or to `precision`, explains. Integers and bool must
// be equal. Empty if there is no difference.
std::string difference(
    const at::Tensor& actual,
    const at::Tensor& expected,
    c10::ScalarType precision = c10::kDouble);

}  // namespace tessera::testing
