// What is looked up: the same table, bags and gradients in every program of
// this benchmark (workload.py makes them for the peers).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace tessera::bench {

struct BagSize {
  int64_t rows;
  int64_t columns;
  int64_t bags;     // of each rank
  int64_t entries;  // of each bag
};

// "uniform", or "zipf" with its frequent rows scattered over the table.
// [bags, entries], int64; each rank has its own.
at::Tensor bag_indices(
    const BagSize& size, const std::string& kind, int64_t rank);

// A block of the table: any rank can make its own shard.
at::Tensor table_block(
    int64_t first_row, int64_t rows, int64_t first_column, int64_t columns);

// What comes back for the pooled rows, [bags, columns].
at::Tensor bag_gradient(const BagSize& size);

// A number that says which tensor this is; of this rank's pooled rows.
double fingerprint(const at::Tensor& pooled);

}  // namespace tessera::bench
