// What a rank sends for its bags, by the formulas of docs/embedding_bags.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "embedding_bag/workload.h"

namespace tessera::bench {

// Bytes that this rank sends, forward and backward.
struct BagTraffic {
  int64_t forward;
  int64_t backward;
};

// A table of floats; the number of ranks divides its rows and columns.
struct BagBatch {
  std::vector<at::Tensor> indices;  // bag_indices of each rank
  BagSize size;
  int64_t rank;  // this one
};

// Of a row-wise sharded table, for mode "sum", "mean" or "max".
BagTraffic pooled_traffic(const BagBatch& batch, const std::string& mode);
BagTraffic rows_traffic(const BagBatch& batch);
BagTraffic gather_traffic(const BagBatch& batch, const std::string& mode);
// Of a column-wise sharded table, in any mode.
BagTraffic columns_traffic(const BagBatch& batch);

}  // namespace tessera::bench
