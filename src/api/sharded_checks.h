// What the lookups on ShardedTensors require of their arguments. The texts are
// those of torch.distributed._shard.
#pragma once

#include <optional>

#include "embedding/table_lookup.h"
#include "tessera/sharded.h"

namespace tessera::detail {

// The public functions, as the texts of errors name them.
inline constexpr const char* kEmbeddingName = "embedding";
inline constexpr const char* kBagName = "embedding_bag";

// Throws c10::TypeError, c10::ValueError or c10::Error, tagged with `caller`,
// unless the table is one that can be looked up: 2-d, floating point, row-wise
// or column-wise sharded in chunks, one a rank. Depends on what is the same on
// all ranks. `module` is nn.Embedding or nn.EmbeddingBag.
void check_sharded_table(
    const ShardedTensor& weight, const char* caller, const char* module);

// "sum", "mean" or "max". Throws c10::ValueError for others.
BagMode bag_mode_of(const std::string& mode);

// The query that options ask for. Throws as above for options that cannot be.
LookupQuery checked_query(
    const ShardedTensor& weight, const sharded::EmbeddingFuncOptions& options);
LookupQuery checked_query(
    const ShardedTensor& weight,
    const sharded::EmbeddingBagFuncOptions& options);

// One rank's input in the lookup's form: single rows, or bags. Throws as above
// for the first thing that is wrong with it.
LookupInput checked_rows(const at::Tensor& input, const ShardedTensor& weight);
LookupInput checked_bags(
    const sharded::BagInput& input,
    const ShardedTensor& weight,
    const sharded::EmbeddingBagFuncOptions& options);

}  // namespace tessera::detail
