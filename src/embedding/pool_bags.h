// How a table, indices and bags that are distributed meet.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "embedding/bag_op.h"

namespace tessera::detail {

// A call of aten::_embedding_bag whose tensors are all distributed, over one
// mesh. Offsets are replicated.
struct BagCall {
  Bag::Args args;
  // Offsets were plain: each rank's own, which may differ by mistake.
  bool plain_offsets = false;

  const Spec& table() const { return *distributed_meta(args.weight).spec; }
  const Spec& batch() const {
    return *distributed_meta(args.bags.indices).spec;
  }
  int64_t bags() const {
    return all_bags(args.bags.offsets, args.options.include_last_offset);
  }
};

// The pooled rows of all bags. Where shards of the indices hold whole bags,
// each rank has those of its indices. Communicates as EmbeddingScope says.
// Throws c10::IndexError on every rank if one of them has an index outside the
// table, and c10::ValueError if plain offsets differ where indices are sharded.
at::Tensor pool_bags(BagCall call);

// Which strategy pool_bags would take, as text.
std::string explain_bags(BagCall call);

}  // namespace tessera::detail
