// Lookups that owners pool: each rank pools, of the bags that it is asked for,
// what it holds of them, and whoever asked puts the replies together. Where the
// table is row-wise sharded, a bag is asked of the owners of its rows
// (pooled_lookup.cpp); where it is column-wise sharded, of every rank
// (column_lookup.cpp).
#pragma once

#include "embedding/handshake.h"
#include "embedding/table_lookup.h"

namespace tessera::detail {

// By local position and rank of the group.
struct BagCounts {
  std::vector<Parts> bags;
  std::vector<Parts> entries;

  // A request holds the length of each bag, then the row of each entry.
  std::vector<Parts> request_sizes() const;
};

// What each rank tells each local position of its bags.
BagCounts told_counts(c10::ArrayRef<BagRequests> told);

class PooledLookup : public TableLookup {
 protected:
  // `whole_bags`: owners are asked for all entries of a bag. Others sum where
  // the mean is asked for.
  PooledLookup(
      LookupRequest request, const SettledLookup& settled, bool whole_bags)
      : TableLookup(std::move(request), settled),
        mode_(
            query().mode == BagMode::kMean && !whole_bags ? BagMode::kSum
                                                          : query().mode) {}

  // The bags that a local position is asked for.
  virtual const BagIndices& asked(size_t i) const = 0;
  // A number for each entry asked, back to who asked. Owners' numbers of one
  // entry add up.
  virtual Shards entries_to_askers(ShardsRef numbers) const = 0;

  // Pools what is asked of each local position; keeps the argmax of maxima.
  Shards pool_asked(ShardsRef tables, BagEmpty empty, at::ScalarType dtype);
  const at::Tensor& asked_argmax(size_t i) const { return asked_argmax_[i]; }

  const BagMode mode_;  // in which owners pool

 private:
  at::Tensor looked_up(size_t i) const override { return asked(i).indices; }
  BagGradient reaching(size_t i, const at::Tensor& given) const override;
  Shards weight_gradients(
      ShardsRef grads, ShardsRef given, ShardsRef tables) const override;

  Shards asked_argmax_;
};

}  // namespace tessera::detail
