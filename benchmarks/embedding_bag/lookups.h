// The lookups that are measured, each with the variants that do it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "embedding_bag/workload.h"

namespace tessera::bench {

struct BagVariant {
  std::string name;
  // This rank's pooled rows. Communicates.
  std::function<at::Tensor()> forward;
  // Forward, backward and an update of the table. Communicates.
  std::function<void()> step;
  // Gives the table its first values.
  std::function<void()> restore;
};

struct BagLookup {
  std::string name;  // "uniform, row-wise, sum"
  // Rank 0 runs it while the others wait. Their variants must not be called.
  bool alone = false;
  std::vector<BagVariant> variants;
};

// Ours, of a ShardedTensor. Requires: the number of ranks divides the table's
// rows and columns.
std::vector<BagLookup> sharded_lookups(
    const BagSize& size, int64_t rank, int64_t ranks);

// at::embedding_bag on rank 0's bags, with the whole table in its memory, which
// other ranks do not make, and ours on one rank.
std::vector<BagLookup> plain_lookups(const BagSize& size, int64_t rank);

}  // namespace tessera::bench
