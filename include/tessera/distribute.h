// Making distributed tensors: from plain tensors, in place, and by factories.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <string>
#include <string_view>

#include "tessera/dtensor.h"
#include "tessera/export.h"

namespace tessera {

// A mesh of the ranks that an n-d integer tensor arranges.
TESSERA_API DeviceMesh device_mesh(
    std::string_view device_type,
    const at::Tensor& ranks,
    c10::ArrayRef<std::string> dim_names = {});

struct DistributeOptions {
  // Every rank holds the same value. Each rank then takes its part of its own
  // copy, and nothing is sent.
  bool same_on_all_ranks = false;
};

// Distributes a plain tensor over the mesh. The default is to replicate it. The
// value is that of the first rank of each mesh dimension (by scatter and
// broadcast), unless options.same_on_all_ranks is set. The result is a leaf
// with the same requires_grad. Communicates. An already distributed tensor is
// returned unchanged if mesh and placements agree. Throws c10::ValueError if
// placements and mesh differ in length ("must have the same length"), a shard
// dim is out of range, a placement is Partial, or the tensor is distributed "to
// a different device mesh" or "to a different placements"; c10::Error for one
// that requires grad but is no leaf
// ("distribute leaf tensor").
TESSERA_API DTensor distribute_tensor(
    const at::Tensor& tensor,
    const DeviceMesh& mesh,
    PlacementsRef placements = {},
    const DistributeOptions& options = {});

// Distributes a tensor in place. Modules and optimizers that hold the tensor
// keep it. If it has a gradient, the gradient is distributed too.
TESSERA_API void distribute_(
    at::Tensor tensor,
    const DeviceMesh& mesh,
    PlacementsRef placements = {},
    const DistributeOptions& options = {});

// Factories. Each rank allocates only its own shard; nothing is sent. Random
// values depend only on the seed and the global index, never on the layout.
// Throw c10::ValueError for a Partial placement.
TESSERA_API DTensor empty(
    SizesRef shape,
    const DeviceMesh& mesh,
    PlacementsRef placements = {},
    const at::TensorOptions& options = {});
TESSERA_API DTensor zeros(
    SizesRef shape,
    const DeviceMesh& mesh,
    PlacementsRef placements = {},
    const at::TensorOptions& options = {});
TESSERA_API DTensor ones(
    SizesRef shape,
    const DeviceMesh& mesh,
    PlacementsRef placements = {},
    const at::TensorOptions& options = {});
TESSERA_API DTensor full(
    SizesRef shape,
    const at::Scalar& value,
    const DeviceMesh& mesh,
    PlacementsRef placements = {},
    const at::TensorOptions& options = {});
TESSERA_API DTensor rand(
    SizesRef shape,
    const DeviceMesh& mesh,
    PlacementsRef placements = {},
    const at::TensorOptions& options = {});
TESSERA_API DTensor randn(
    SizesRef shape,
    const DeviceMesh& mesh,
    PlacementsRef placements = {},
    const at::TensorOptions& options = {});

// Seeds torch's default generators, from which distributed tensors draw: the
// same as torch::manual_seed. Every rank must call it with the same seed.
TESSERA_API void manual_seed(uint64_t seed);

}  // namespace tessera
