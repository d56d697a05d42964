// The cost of a call whose plan is not in the cache.
#pragma once

namespace tessera::bench {

// Registers benchmarks miss/<op>/<ranks>: each iteration calls the op on a
// shape that was never seen before, and only that call is timed. The counter
// hit_ns is the time of the same call when it is repeated.
void register_misses();

}  // namespace tessera::bench
