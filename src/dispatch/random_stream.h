// Where the streams of random numbers come from. A stream is drawn from a torch
// generator, so that seeding it, saving its state and restoring it work as on
// one device; within the stream a number depends on the index of its element in
// the whole tensor and on nothing else, so that every layout and every number
// of ranks gives the same tensor. Ranks draw in step: their generators must be
// in the same state. Where they are not and ranks hold the same numbers, the
// next message between them tells.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <optional>

#include "kernels/random/random_draw.h"
#include "tessera/mesh.h"
#include "tessera/placement.h"

namespace tessera::detail {

// The next stream of `generator`, or of torch's default one where none is
// given, for a tensor that is laid out like this. Throws c10::Error if a given
// one is not of the tensor's `device`.
RandomStream next_stream(
    const std::optional<at::Generator>& generator,
    c10::Device device,
    const DeviceMesh& mesh,
    PlacementsRef placements);

// A seed for an op that draws by itself: the same on every rank of the mesh,
// another for each call.
uint64_t next_random_seed(const DeviceMesh& mesh);

}  // namespace tessera::detail
