// Lookups in a column-wise sharded table.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include "embedding/make_lookup.h"
#include "embedding/pooled_lookup.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

class ColumnLookup final : public PooledLookup {
 public:
  ColumnLookup(LookupRequest request, const Handshake& handshake)
      : PooledLookup(
            std::move(request), handshake.settled, /*whole_bags=*/true),
        counts_(told_counts(handshake.told)),
        columns_(
            handshake.told.size(),
            chunk_sizes(table().sizes[1], table().mesh.size(0))),
        asked_(gather()) {}

 private:
  const BagIndices& asked(size_t i) const override { return asked_[i]; }

  // Each bag's columns meet on the rank that asked for it.
  std::vector<at::Tensor> look_up(ShardsRef shards) override {
    const auto met = comm().all_to_all(
        request_.along(),
        pool_asked(shards, BagEmpty::kZero, table().dtype),
        {0, counts_.bags},
        {1, columns_});
    std::vector<at::Tensor> results(met.begin(), met.end());
    for (size_t i = 0; !query().pools && i < results.size(); ++i) {
      auto sizes = input(i).indices.sizes().vec();
      sizes.push_back(table().sizes[1]);
      results[i] = results[i].view(sizes);
    }
    return results;
  }

  Shards to_owners(ShardsRef grads) const override {
    Shards by_bag;
    for (size_t i = 0; i < grads.size(); ++i) {
      by_bag.push_back(
          grads[i].view({result_count(input(i)), table().sizes[1]}));
    }
    return comm().all_to_all(
        request_.along(), by_bag, {1, columns_}, {0, counts_.bags});
  }

  Shards entries_to_askers(ShardsRef numbers) const override {
    return comm().reduce_scatter(
        request_.along(), numbers, 0, counts_.entries, ReduceOp::Sum);
  }

  Collectives& comm() const { return collectives(table().mesh); }

  // A row is a bag of one.
  BagIndices own_bags(size_t i) const {
    BagIndices own = input(i);
    own.indices = own.indices.flatten();
    own.include_last_offset = true;
    own.per_sample_weights = weights_of(i);
    if (!own.offsets.defined()) {
      own.offsets = at::arange(
          own.indices.numel() + 1, own.indices.options().dtype(at::kLong));
    }
    return own;
  }

  // The bags of all ranks. On a mesh of one rank they are as they are.
  std::vector<BagIndices> gather() const {
    std::vector<BagIndices> all;
    for (size_t i = 0; i < request_.inputs.size(); ++i) {
      all.push_back(own_bags(i));
    }
    if (table().mesh.size() == 1) {
      return all;
    }
    Shards requests;
    Shards weights;
    for (const auto& own : all) {
      const auto dtype = index_dtype(rows());
      requests.push_back(
          at::cat({own.offsets.diff().to(dtype), own.indices.to(dtype)}));
      weights.push_back(own.per_sample_weights.value_or(at::Tensor()));
    }
    requests = comm().all_gather(
        request_.along(), requests, 0, counts_.request_sizes());
    if (settled_.per_sample_weights) {
      weights =
          comm().all_gather(request_.along(), weights, 0, counts_.entries);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = unpack_requests(
                   {requests[i], counts_.bags[i], counts_.entries[i]}, -1)
                   .input;
      all[i].padding_idx = query().left_out();
      if (settled_.per_sample_weights) {
        all[i].per_sample_weights = weights[i];
      }
    }
    return all;
  }

  const BagCounts counts_;
  const std::vector<Parts> columns_;     // of each rank, by local position
  const std::vector<BagIndices> asked_;  // the bags of all ranks
};

}  // namespace

LookupPtr make_column_lookup(LookupRequest request, const LocalError& error) {
  std::vector<BagRequests> requests;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    requests.push_back(bag_requests(request, i, error));
    for (auto& told : requests.back()) {
      told.indices = request.inputs[i].indices.numel();
      told.bags = result_count(request.inputs[i]);
    }
  }
  const auto handshake =
      shake_hands(request.along(), requests, error, *request.query.caller);
  return c10::make_intrusive<ColumnLookup>(std::move(request), handshake);
}

}  // namespace tessera::detail
