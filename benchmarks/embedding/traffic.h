// What a rank sends for batch-sharded indices, by the formulas of
// docs/embeddings.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::bench {

// A row-wise table over `ranks` ranks that divide its rows and the indices.
struct Batch {
  at::Tensor indices;  // of all ranks, int64
  int64_t rows;
  int64_t row_bytes;
  int64_t ranks;
  int64_t rank;  // this one
};

// Bytes that this rank sends, forward and backward.
struct Traffic {
  int64_t forward;
  int64_t backward;
};

Traffic gather_traffic(const Batch& batch);
Traffic exchange_traffic(const Batch& batch);

}  // namespace tessera::bench
