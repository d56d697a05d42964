// Random numbers that depend on the seed, the number of random ops before and
// the global index of the element, and on nothing else: every layout and every
// number of ranks gives the same tensor, and replicas are equal.
#pragma once

#include <cstdint>

namespace tessera::detail {

void seed_random(uint64_t seed);

// A seed for an op that draws by itself: the same on every rank, another for
// each call.
uint64_t next_random_seed();

}  // namespace tessera::detail
