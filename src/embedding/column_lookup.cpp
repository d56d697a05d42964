// Lookups in a column-wise sharded table.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include "embedding/make_lookup.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

// By local position and rank of the group.
struct ColumnCounts {
  std::vector<Parts> bags;
  std::vector<Parts> entries;
  std::vector<Parts> columns;
};

class ColumnLookup final : public TableLookup {
 public:
  ColumnLookup(
      LookupRequest request, const SettledLookup& settled, ColumnCounts counts)
      : TableLookup(std::move(request), settled),
        counts_(std::move(counts)),
        all_(gather()) {}

  Gradients backward(const BackwardPass& pass) override {
    const auto& [grads, weight, table_needs_grad] = pass;
    Shards by_bag;
    for (size_t i = 0; i < grads.size(); ++i) {
      by_bag.push_back(grads[i].view({input(i).bags(), table().sizes[1]}));
    }
    const auto own = comm().all_to_all(
        along(), by_bag, {1, counts_.columns}, {0, counts_.bags});
    Gradients result;
    result.per_sample_weights.resize(grads.size());
    if (settled_.weights_need_grad) {
      weight_gradients(own, current_shards(weight), result);
    }
    for (size_t i = 0; table_needs_grad && i < own.size(); ++i) {
      BagGradient bags{own[i], whole(), all_[i], query().mode};
      bags.input.padding_idx = query().padding_idx;
      if (query().mode == BagMode::kMax) {
        bags.argmax = argmax_[i];
      }
      take_gradient(i, bags, weight, result);
    }
    return result;
  }

 private:
  at::Tensor looked_up(size_t i) const override { return all_[i].indices; }

  std::vector<at::Tensor> look_up(ShardsRef shards) override {
    Shards pooled;
    for (size_t i = 0; i < shards.size(); ++i) {
      if (query().mode == BagMode::kMax) {
        auto maxima = embedding_bag_max_part(
            shards[i], whole(), all_[i], BagEmpty::kZero);
        argmax_.push_back(std::move(maxima.argmax));
        pooled.push_back(std::move(maxima.values));
      } else {
        pooled.push_back(
            embedding_bag_part(shards[i], whole(), all_[i], query().mode));
      }
    }
    const auto met = comm().all_to_all(
        along(), pooled, {0, counts_.bags}, {1, counts_.columns});
    std::vector<at::Tensor> results(met.begin(), met.end());
    for (size_t i = 0; !query().pools && i < results.size(); ++i) {
      auto sizes = input(i).indices.sizes().vec();
      sizes.push_back(table().sizes[1]);
      results[i] = results[i].view(sizes);
    }
    return results;
  }

  MeshDim along() const { return {table().mesh, 0}; }
  Collectives& comm() const { return collectives(table().mesh); }
  // Every rank holds some columns of all rows.
  BagPart whole() const { return {0, rows()}; }

  // Where the rank's bags begin, then the end; a row is a bag of one.
  static at::Tensor bounds_of(const LookupInput& input) {
    return input.bounds.defined()
               ? input.bounds
               : at::arange(
                     input.indices.numel() + 1,
                     input.indices.options().dtype(at::kLong));
  }

  BagIndices own_bags(size_t i) const {
    BagIndices own;
    own.indices = input(i).indices.flatten();
    own.offsets = bounds_of(input(i));
    own.include_last_offset = true;
    own.padding_idx = query().left_out();
    own.per_sample_weights = weights_of(i);
    return own;
  }

  // The bags of all ranks. A rank alone has them as they are.
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
    std::vector<Parts> sizes = counts_.bags;
    for (size_t i = 0; i < all.size(); ++i) {
      // The lengths of the bags, then the entries.
      const auto dtype = index_dtype(rows());
      requests.push_back(
          at::cat({all[i].offsets.diff().to(dtype), all[i].indices.to(dtype)}));
      weights.push_back(all[i].per_sample_weights.value_or(at::Tensor()));
      for (size_t c = 0; c < sizes[i].size(); ++c) {
        sizes[i][c] += counts_.entries[i][c];
      }
    }
    const auto gathered = comm().all_gather(along(), requests, 0, sizes);
    if (settled_.per_sample_weights) {
      weights = comm().all_gather(along(), weights, 0, counts_.entries);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      const auto theirs =
          unpack_requests(gathered[i], counts_.bags[i], counts_.entries[i], -1)
              .input;
      all[i].indices = theirs.indices;
      all[i].offsets = theirs.offsets;
      if (settled_.per_sample_weights) {
        all[i].per_sample_weights = weights[i];
      }
    }
    return all;
  }

  // Each rank's columns have a share in grad . row.
  void weight_gradients(ShardsRef grads, ShardsRef shards, Gradients& result) {
    Shards shares;
    for (size_t i = 0; i < shards.size(); ++i) {
      shares.push_back(embedding_bag_weights_backward(
          grads[i], shards[i], whole(), all_[i]));
    }
    const auto own = comm().reduce_scatter(
        along(), shares, 0, counts_.entries, ReduceOp::Sum);
    for (size_t i = 0; i < own.size(); ++i) {
      if (has_weights(i)) {
        result.per_sample_weights[i] = own[i];
      }
    }
  }

  const ColumnCounts counts_;
  const std::vector<BagIndices> all_;  // the bags of all ranks
  Shards argmax_;                      // max: of these columns
};

}  // namespace

LookupPtr make_column_lookup(LookupRequest request, const LocalError& error) {
  const Spec& table = *request.table;
  const int64_t ranks = table.mesh.size(0);
  std::vector<BagRequests> requests;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    requests.push_back(bag_requests(request, i, error));
    for (auto& told : requests.back()) {
      told.indices = request.inputs[i].indices.numel();
      told.bags = request.inputs[i].bags();
    }
  }
  const auto handshake =
      shake_hands({table.mesh, 0}, requests, error, request.query.caller->name);
  ColumnCounts counts;
  for (const auto& told : handshake.told) {
    counts.bags.push_back(each_of(told, &BagRequest::bags));
    counts.entries.push_back(each_of(told, &BagRequest::indices));
    counts.columns.push_back(chunk_sizes(table.sizes[1], ranks));
  }
  return c10::make_intrusive<ColumnLookup>(
      std::move(request), handshake.settled, std::move(counts));
}

}  // namespace tessera::detail
