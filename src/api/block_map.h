// Who holds which block of a tensor: what the pictures are drawn from.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/shard_math.h"
#include "tessera/spec.h"

namespace tessera::detail {

// A block of index ranges, and the ranks that hold it.
struct Block {
  std::vector<Range> ranges;   // one a tensor dimension
  std::vector<int64_t> ranks;  // by position in the mesh
  // "0", "0,2", "0-3", "sum(0,1)", "sum(0,1),sum(2,3)": terms of one pending
  // reduction together, replicas side by side.
  std::string label;
};

struct BlockMap {
  // For each tensor dimension the non-empty ranges that its shards divide it
  // into, in order; one range where it is not sharded, none where its size is
  // 0.
  std::vector<std::vector<Range>> ranges;
  // Row-major over `ranges`: each combination of ranges is held by someone.
  std::vector<Block> blocks;
  std::vector<int64_t> empty_ranks;  // those that hold nothing
};

BlockMap block_map(const Spec& spec);

// The layout of a distributed tensor. Throws c10::TypeError, tagged with
// `caller`, for others.
const Spec& spec_of(const at::Tensor& tensor, const char* caller);

// "0:4"
std::string to_string(const Range& range);

// "0", "0,2", "0-3,7": increasing numbers, runs of three and more made short.
std::string rank_list(const std::vector<int64_t>& ranks);

}  // namespace tessera::detail
