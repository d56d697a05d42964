// How lookups in sharded tables are carried out.
//
// torch::nn::Embedding, torch::embedding and at::embedding work on distributed
// tensors as they are. These are the options that they have no argument for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/export.h"

namespace tessera {

// How a lookup is carried out where indices are sharded over the ranks that
// share the rows of a table. The table never moves; both give the same rows or
// bags, in the layout of the indices.
enum class LookupStrategy : uint8_t {
  // Whichever the cost function finds cheaper.
  Cheapest,
  // Every rank gets all indices and looks its own rows up; a reduce-scatter
  // gives each rank the rows of its indices. Two collectives; sends each row or
  // bag once a rank.
  Gather,
  // Each distinct index goes to the rank that holds its row, and the row comes
  // back; of bags, the rows or what they are pooled to. Three collectives;
  // sends only what is asked for. Where several mesh dimensions shard a table's
  // rows, its shards are meta tensors, or shards of the indices do not hold
  // whole bags,
  // Gather is used instead.
  Exchange,
};

// What an exchange brings to the rank that asks for bags of a row-wise sharded
// table. All give the same; see docs/embedding_bags.md for what they send.
enum class BagStrategy : uint8_t {
  Cheapest,  // whichever of the two sends fewer bytes, over all ranks
  Pooled,    // each owner pools its entries of a bag and sends the result
  Rows,      // each distinct row is sent once, and pooled where it is asked for
};

struct EmbeddingOptions {
  LookupStrategy strategy = LookupStrategy::Cheapest;
  // For bags that are exchanged.
  BagStrategy bag_strategy = BagStrategy::Cheapest;
  // Whether embedding_renorm_ (the max_norm of modules) may renormalise
  // distributed tables. It gathers sharded indices, and reduces the norms of
  // tables that are column-wise sharded. Refused by default, as it writes the
  // table in the forward pass.
  bool max_norm = false;
};

// While one is alive, lookups of this thread follow its options. Scopes nest.
class TESSERA_API EmbeddingScope {
 public:
  explicit EmbeddingScope(const EmbeddingOptions& options);
  ~EmbeddingScope();
  EmbeddingScope(const EmbeddingScope&) = delete;
  EmbeddingScope& operator=(const EmbeddingScope&) = delete;

  // This thread's options; the defaults outside a scope.
  static const EmbeddingOptions& current();

 private:
  EmbeddingOptions previous_;
};

// Asks the system for huge pages behind a table on the CPU that you allocate
// yourself; do it before you fill the table. Rows lie anywhere in it, and with
// small pages finding them costs more than reading them. Tables that this
// library makes (distribute_tensor, ShardedTensor::from_full) are laid so
// already. True if the system agreed; nothing is asked for less than 4 MiB.
TESSERA_API bool prefer_huge_pages(const at::Tensor& table);

}  // namespace tessera
