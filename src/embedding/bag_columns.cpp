#include "embedding/bag_columns.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/embedding_renorm.h>
#include <ATen/ops/ones.h>

#include "embedding/bag_census.h"
#include "embedding/bag_route.h"
#include "tessera/embedding.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

class BagColumns final : public BagVisit {
 public:
  using BagVisit::BagVisit;

  void meet(const LocalError& error, const BagWants& wants) override {
    std::vector<BagNotices> notices;
    for (const auto& bags : bags_) {
      BagNotice notice;
      notice.indices = bags.indices.size(0);
      notice.bags = bags.bags();
      notice.flags = bag_flags(bags, error, wants);
      notice.fingerprint = query_.fingerprint();
      notices.emplace_back(ranks(), notice);
    }
    for (const auto& told :
         swap_notices(along(), notices, error, query_.caller)) {
      Parts bags;
      Parts entries;
      for (const auto& notice : told) {
        bags.push_back(notice.bags);
        entries.push_back(notice.indices);
      }
      bag_counts_.push_back(std::move(bags));
      entry_counts_.push_back(std::move(entries));
      weighted_ = any_flag(told, BagNotice::kPerSampleWeights);
      weights_need_grad_ = any_flag(told, BagNotice::kGradient);
    }
    columns_.assign(bags_.size(), chunk_sizes(table_->sizes[1], ranks()));
  }

  std::vector<at::Tensor> pool(const at::Tensor& weight) override {
    if (ranks() == 1) {
      take_own();
    } else {
      gather();
    }
    renorm(weight);
    const auto& shards = current_shards(weight);
    Shards pooled;
    for (size_t i = 0; i < shards.size(); ++i) {
      if (query_.mode == BagMode::kMax) {
        auto maxima = embedding_bag_max_part(
            shards[i], whole(), all_[i], BagEmpty::kZero);
        argmax_.push_back(std::move(maxima.argmax));
        pooled.push_back(std::move(maxima.values));
      } else {
        pooled.push_back(
            embedding_bag_part(shards[i], whole(), all_[i], query_.mode));
      }
    }
    const auto met =
        comm().all_to_all(along(), pooled, 0, bag_counts_, 1, columns_);
    return {met.begin(), met.end()};
  }

  Gradients differentiate(
      ShardsRef grads,
      const at::Tensor& weight,
      bool table_needs_grad) override {
    const auto own =
        comm().all_to_all(along(), grads, 1, columns_, 0, bag_counts_);
    Gradients result;
    result.weights.resize(bags_.size());
    if (weights_need_grad_) {
      per_sample_weight_gradients(own, current_shards(weight), result);
    }
    for (size_t i = 0; table_needs_grad && i < own.size(); ++i) {
      BagGradient bags{own[i], whole(), all_[i], query_.mode};
      bags.input.padding_idx = query_.padding_idx;
      if (query_.mode == BagMode::kMax) {
        bags.argmax = argmax_[i];
      }
      if (query_.step.has_value()) {
        embedding_bag_step_(current_shards(weight)[i], bags, *query_.step);
      } else {
        const auto backward = query_.sparse ? embedding_bag_sparse_backward
                                            : embedding_bag_dense_backward;
        result.table.push_back(backward(bags, rows()));
      }
    }
    return result;
  }

 private:
  Collectives& comm() const { return collectives(table_->mesh); }
  // Every rank holds some columns of all rows.
  BagPart whole() const { return {0, rows()}; }

  // The lengths of a rank's bags, then its entries.
  at::Tensor request(const RankBags& bags) const {
    const auto dtype = index_dtype();
    const int64_t count = bags.bags();
    const auto lengths = bags.bounds.narrow(0, 1, count)
                             .sub(bags.bounds.narrow(0, 0, count))
                             .to(dtype);
    return at::cat({lengths, bags.indices.to(dtype)});
  }

  // A rank alone has all entries as they are.
  void take_own() {
    for (const auto& bags : bags_) {
      BagInput input;
      input.indices = bags.indices;
      input.offsets = bags.bounds;
      input.include_last_offset = true;
      input.padding_idx = query_.left_out();
      if (weighted_) {
        input.per_sample_weights = bags.weights;
      }
      all_.push_back(std::move(input));
    }
  }

  void gather() {
    Shards requests;
    Shards per_sample_weights;
    std::vector<Parts> sizes = bag_counts_;
    for (size_t i = 0; i < bags_.size(); ++i) {
      requests.push_back(request(bags_[i]));
      for (int64_t c = 0; c < ranks(); ++c) {
        sizes[i][c] += entry_counts_[i][c];
      }
      const auto& indices = bags_[i].indices;
      if (weighted_) {
        per_sample_weights.push_back(
            bags_[i].weights.defined()
                ? bags_[i].weights
                : at::ones(
                      indices.sizes(), indices.options().dtype(table_->dtype)));
      }
    }
    const auto gathered = comm().all_gather(along(), requests, 0, sizes);
    if (weighted_) {
      per_sample_weights =
          comm().all_gather(along(), per_sample_weights, 0, entry_counts_);
    }
    for (size_t i = 0; i < bags_.size(); ++i) {
      auto input =
          unpack_requests(gathered[i], bag_counts_[i], entry_counts_[i], -1)
              .input;
      const auto device = bags_[i].indices.device();
      input.indices = input.indices.to(device);
      input.offsets = input.offsets.to(device);
      input.padding_idx = query_.left_out();
      if (weighted_) {
        input.per_sample_weights = per_sample_weights[i];
      }
      all_.push_back(std::move(input));
    }
  }

  // The norms of rows whose columns lie apart are reduced over the ranks, by
  // the op for distributed tables: every rank has all entries by now.
  void renorm(at::Tensor weight) {
    if (!query_.max_norm.has_value() || all_.empty()) {
      return;
    }
    Shards entries;
    for (const auto& input : all_) {
      entries.push_back(input.indices);
    }
    auto spec = Spec::make(
        table_->mesh,
        Placements(table_->mesh.ndim(), Replicate()),
        entries[0].sizes(),
        entries[0].scalar_type());
    const EmbeddingScope allowed({.max_norm = true});
    at::embedding_renorm_(
        weight,
        make_distributed(std::move(spec), std::move(entries)),
        *query_.max_norm,
        query_.norm_type);
  }

  // Each rank's columns have a share in grad . row.
  void per_sample_weight_gradients(
      ShardsRef grads, ShardsRef shards, Gradients& result) {
    Shards shares;
    for (size_t i = 0; i < shards.size(); ++i) {
      shares.push_back(embedding_bag_weights_backward(
          grads[i], shards[i], whole(), all_[i]));
    }
    const auto own =
        comm().reduce_scatter(along(), shares, 0, entry_counts_, ReduceOp::Sum);
    for (size_t i = 0; i < own.size(); ++i) {
      if (bags_[i].weights.defined()) {
        result.weights[i] = own[i];
      }
    }
  }

  // By rank of the group.
  std::vector<Parts> bag_counts_;
  std::vector<Parts> entry_counts_;
  std::vector<Parts> columns_;
  bool weighted_ = false;
  std::vector<BagInput> all_;  // the bags of all ranks
  Shards argmax_;              // max: of these columns
};

}  // namespace

c10::intrusive_ptr<BagVisit> make_bag_columns(
    SpecPtr table, std::vector<RankBags> bags, const BagQuery& query) {
  return c10::make_intrusive<BagColumns>(
      std::move(table), /*mesh_dim=*/0, std::move(bags), query);
}

}  // namespace tessera::detail
