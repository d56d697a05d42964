// What the ShardedTensor door requires of its arguments. The texts are those of
// torch.distributed._shard.
#pragma once

#include <optional>

#include "embedding/bag_lookup.h"
#include "tessera/sharded.h"

namespace tessera::detail {

// The public functions, as the texts of errors name them.
inline constexpr const char* kLookupDoor = "embedding";
inline constexpr const char* kBagDoor = "embedding_bag";

// Throws c10::TypeError, c10::ValueError or c10::Error, tagged with `caller`,
// unless the table is one that can be looked up: 2-d, floating point, cut in
// chunks of rows or columns, one a rank. Depends on what is alike on all ranks.
// `module` is nn.Embedding or nn.EmbeddingBag.
void check_table(
    const ShardedTensor& weight, const char* caller, const char* module);

// The query that options ask for. Throws as above for options that cannot be.
BagQuery checked_query(
    const ShardedTensor& weight, const sharded::EmbeddingFuncOptions& options);
BagQuery checked_query(
    const ShardedTensor& weight,
    const sharded::EmbeddingBagFuncOptions& options);

// One rank's input in the engine's form: single rows, or bags. Throws as above
// for the first thing that is wrong with it.
RankBags checked_rows(const at::Tensor& input, const ShardedTensor& weight);
RankBags checked_bags(
    const sharded::BagInput& input,
    const ShardedTensor& weight,
    const sharded::EmbeddingBagFuncOptions& options);

}  // namespace tessera::detail
