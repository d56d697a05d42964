// A lookup so small that the cost of the call is all there is to see.
#pragma once

#include "tessera/mesh.h"

namespace tessera::bench {

// The best time of a call in nanoseconds of this thread.
struct TinyTimes {
  double plain;        // at::embedding
  double row_wise;     // of a distributed table, replicated indices
  double column_wise;  // likewise
};

// 5 x 4 indices in a table of 16 x 8 floats, without gradients.
TinyTimes tiny_times(const DeviceMesh& mesh);

}  // namespace tessera::bench
