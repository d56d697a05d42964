// The row exchange, over a row-wise sharded table: each distinct row that a
// rank looks up is asked of its owner and comes back; gradients of these rows
// take the same path in reverse. at::embedding, sharded::embedding and bags
// that fetch rows share it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/collectives.h"
#include "dispatch/tensor.h"
#include "kernels/lookup/route.h"

namespace tessera::detail {

// Where each owner's rows begin along `mesh_dim`, then the end of the table.
// Requires: no other mesh dimension shards the rows.
Sizes owner_bounds(const Spec& table, int64_t mesh_dim);

// Moves rows of dim 0 within the groups along a mesh dimension, where lists say
// how many go to and come from each rank.
struct RowMover {
  SpecPtr table;
  int64_t mesh_dim;
  bool silent;  // no rank has anything for another: nothing is sent

  Shards operator()(ShardsRef rows, PartsRef sent, PartsRef received) const;
};

// Immutable: what each rank asks for is settled and sent when it is made.
class RowExchange {
 public:
  // `routes`, one for each local position, of owner_bounds(); `asked_counts`,
  // how many rows each rank asks of it.
  RowExchange(
      RowMover move,
      std::vector<Route> routes,
      std::vector<Parts> asked_counts);

  const Route& route(size_t local) const { return routes_[local]; }
  // The rows that are asked of a local position, rank after rank, itself
  // included; distinct for each of them.
  const at::Tensor& asked(size_t local) const { return asked_[local]; }

  // The rows of each route's `wanted`. `tables` are the parts that are held.
  Shards fetch(ShardsRef tables) const;
  // A row for each of `wanted`, to their owners: a row for each of `asked`.
  Shards give_back(ShardsRef rows) const;

 private:
  RowMover move_;
  std::vector<Route> routes_;
  std::vector<Parts> asked_counts_;
  std::vector<Parts> wanted_counts_;
  Shards asked_;
};

}  // namespace tessera::detail
