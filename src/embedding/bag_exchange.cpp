#include "embedding/bag_exchange.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>

#include "embedding/bag_census.h"
#include "embedding/bag_terms.h"
#include "embedding/bag_trade.h"
#include "kernels/lookup/embedding.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

class BagExchange final : public BagVisit {
 public:
  using BagVisit::BagVisit;

  void meet(const LocalError& error, const BagWants& wants) override {
    prepare();
    std::vector<BagNotices> notices;
    for (size_t i = 0; i < trades_.size(); ++i) {
      const int64_t flags =
          bag_flags(bags_[i], error, wants) |
          (trades_[i].route.padding ? BagNotice::kPadding : 0);
      notices.push_back(
          bag_notices(trades_[i], ranks(), flags, query_.fingerprint()));
    }
    const auto told = swap_notices(along(), notices, error, query_.caller);
    for (size_t i = 0; i < told.size(); ++i) {
      terms_ = settle_terms(*table_, query_, told[i]);
      settle_trade(trades_[i], terms_, told[i]);
      if (!terms_.pooled && query_.strategy == BagStrategy::Cheapest) {
        find_wanted(trades_[i], bounds_);
      }
    }
    weights_need_grad_ = terms_.weights_need_grad;
  }

  std::vector<at::Tensor> pool(const at::Tensor& weight) override {
    const auto& shards = current_shards(weight);
    fill_per_sample_weights();
    if (terms_.pooled) {
      ask_for_bags();
    } else {
      ask_for_rows();
    }
    if (query_.max_norm.has_value()) {
      begin_write(weight, query_.caller);
      for (size_t i = 0; i < shards.size(); ++i) {
        renorm_part(trades_[i], shards[i], query_, terms_.padding);
      }
      weight.unsafeGetTensorImpl()->bump_version();
    }
    return terms_.pooled ? take_pooled(shards) : take_rows(shards);
  }

  Gradients differentiate(
      ShardsRef grads,
      const at::Tensor& weight,
      bool table_needs_grad) override {
    Shards sums;
    Shards sent;
    for (size_t i = 0; i < trades_.size(); ++i) {
      auto sum = grad_of_sums(trades_[i], grads[i], sum_dtype());
      if (!terms_.pooled) {
        // These are added up twice: rounded once, at the end.
        sum = sum.to(sum_dtype());
      }
      sent.push_back(
          terms_.pooled ? grad_of_listed(trades_[i], sum)
                        : grad_of_fetched(trades_[i], sum));
      sums.push_back(std::move(sum));
    }
    const auto given = move(sent, &BagTrade::sent_bags, &BagTrade::asked_bags);
    Gradients result;
    result.weights.resize(trades_.size());
    if (weights_need_grad_) {
      per_sample_weight_gradients(grads, given, current_shards(weight), result);
    }
    for (size_t i = 0; table_needs_grad && i < trades_.size(); ++i) {
      if (query_.step.has_value()) {
        step_part(
            trades_[i], current_shards(weight)[i], sums[i], given[i], query_);
      } else {
        result.table.push_back(
            grad_of_part(trades_[i], sums[i], given[i], query_)
                .to(table_->dtype));
      }
    }
    return result;
  }

 private:
  // How many of the table's columns are at a local position.
  int64_t columns_at(size_t i) const {
    const auto& mesh = table_->mesh;
    return local_shape(
        table_->sizes, mesh, table_->placements, mesh.local_positions()[i])[1];
  }

  void prepare() {
    const auto& mesh = table_->mesh;
    for (const int64_t size : chunk_sizes(rows(), ranks())) {
      bounds_.push_back(bounds_.back() + size);
    }
    for (size_t i = 0; i < bags_.size(); ++i) {
      const int64_t self =
          mesh.coordinate(mesh.local_positions()[i], mesh_dim_);
      trades_.push_back(make_trade(
          bags_[i], query_, bounds_, self, index_dtype(), sum_dtype()));
    }
  }

  // Factors on one rank alone are per_sample_weights of 1 on the others.
  void fill_per_sample_weights() {
    for (size_t i = 0; terms_.per_sample_weights && i < trades_.size(); ++i) {
      const auto& own = trades_[i].own.indices;
      trades_[i].own.per_sample_weights =
          bags_[i].weights.defined()
              ? bags_[i].weights
              : at::ones(own.sizes(), own.options().dtype(table_->dtype));
    }
  }

  std::vector<Parts> all_of(Parts BagTrade::*parts) const {
    std::vector<Parts> all;
    for (const auto& trade : trades_) {
      all.push_back(trade.*parts);
    }
    return all;
  }

  Shards move(ShardsRef rows, PartsRef sent, PartsRef received) const {
    return terms_.silent ? Shards(rows.begin(), rows.end())
                         : collectives(table_->mesh)
                               .all_to_all_rows(along(), rows, sent, received);
  }

  Shards move(
      ShardsRef rows, Parts BagTrade::*sent, Parts BagTrade::*received) const {
    return move(rows, all_of(sent), all_of(received));
  }

  void ask_for_bags() {
    Shards requests;
    std::vector<Parts> sent = all_of(&BagTrade::sent_bags);
    std::vector<Parts> received = all_of(&BagTrade::asked_bags);
    for (size_t i = 0; i < trades_.size(); ++i) {
      requests.push_back(trades_[i].route.request);
      for (int64_t c = 0; c < ranks(); ++c) {
        sent[i][c] += trades_[i].sent_entries[c];
        received[i][c] += trades_[i].asked_entries[c];
      }
    }
    const auto asked = move(requests, sent, received);
    for (size_t i = 0; i < trades_.size(); ++i) {
      auto& trade = trades_[i];
      trade.asked = unpack_requests(
          asked[i], trade.asked_bags, trade.asked_entries, absent_row(trade));
      to_device_of(trade.own, trade.asked);
    }
    if (terms_.per_sample_weights) {
      ask_with_per_sample_weights();
    }
  }

  // A row that the part does not hold, where the kernels must know whether a
  // bag's first entry is elsewhere. (Only then there is such a row.)
  int64_t absent_row(const BagTrade& trade) const {
    if (query_.mode != BagMode::kMax) {
      return -1;
    }
    return trade.part.first > 0 ? 0 : trade.held;
  }

  static void to_device_of(const BagInput& own, AskedBags& asked) {
    const auto device = own.indices.device();
    asked.input.indices = asked.input.indices.to(device);
    asked.input.offsets = asked.input.offsets.to(device);
    asked.firsts = asked.firsts.to(device);
  }

  void ask_with_per_sample_weights() {
    Shards per_sample_weights;
    for (const auto& trade : trades_) {
      const auto& own = *trade.own.per_sample_weights;
      per_sample_weights.push_back(
          own.index_select(0, trade.route.places.to(own.device())));
    }
    const auto asked = move(
        per_sample_weights, &BagTrade::sent_entries, &BagTrade::asked_entries);
    for (size_t i = 0; i < trades_.size(); ++i) {
      trades_[i].asked.input.per_sample_weights = asked[i];
    }
  }

  // Each row asked for is a bag of one entry.
  void ask_for_rows() {
    Shards wanted;
    for (const auto& trade : trades_) {
      wanted.push_back(trade.wanted.wanted.to(index_dtype()));
    }
    const auto asked =
        move(wanted, &BagTrade::sent_bags, &BagTrade::asked_bags);
    for (size_t i = 0; i < trades_.size(); ++i) {
      auto& trade = trades_[i];
      const int64_t count = asked[i].size(0);
      auto& input = trade.asked.input;
      input.indices = asked[i].to(trade.own.indices.device());
      input.include_last_offset = true;
      input.offsets =
          at::arange(count + 1, input.indices.options().dtype(at::kLong));
      if (terms_.per_sample_weights) {
        input.per_sample_weights =
            at::ones({count}, input.indices.options().dtype(table_->dtype));
      }
      if (query_.mode == BagMode::kMax) {
        trade.asked_argmax = input.offsets.narrow(0, 0, count)
                                 .to(at::kInt)
                                 .unsqueeze(1)
                                 .expand({count, columns_at(i)});
      }
    }
  }

  std::vector<at::Tensor> take_pooled(ShardsRef shards) {
    std::vector<PooledBags> theirs(trades_.size());
    Shards values;
    Shards argmax;
    for (size_t i = 0; i < trades_.size(); ++i) {
      auto pooled =
          pool_asked(trades_[i], shards[i], sum_dtype(), terms_.argmax_dtype);
      values.push_back(std::move(pooled.values));
      argmax.push_back(std::move(pooled.argmax));
    }
    values = move(values, &BagTrade::asked_bags, &BagTrade::sent_bags);
    if (query_.mode == BagMode::kMax) {
      argmax = move(argmax, &BagTrade::asked_bags, &BagTrade::sent_bags);
    }
    std::vector<at::Tensor> out;
    for (size_t i = 0; i < trades_.size(); ++i) {
      out.push_back(pool_with_pooled(
          trades_[i], shards[i], {values[i], argmax[i]}, sum_dtype()));
    }
    return out;
  }

  std::vector<at::Tensor> take_rows(ShardsRef shards) {
    Shards rows_asked;
    for (size_t i = 0; i < trades_.size(); ++i) {
      rows_asked.push_back(lookup_rows(
          shards[i],
          trades_[i].asked.input.indices,
          trades_[i].part.first,
          rows()));
    }
    const auto fetched =
        move(rows_asked, &BagTrade::asked_bags, &BagTrade::sent_bags);
    std::vector<at::Tensor> out;
    for (size_t i = 0; i < trades_.size(); ++i) {
      trades_[i].fetched = fetched[i];
      number_fetched(trades_[i]);
      out.push_back(pool_with_fetched(trades_[i], shards[i], sum_dtype()));
    }
    return out;
  }

  // grad . row for each entry, computed where the row is.
  void per_sample_weight_gradients(
      ShardsRef grads, ShardsRef given, ShardsRef shards, Gradients& result);

  Sizes bounds_{0};  // the owners' first rows, then the end of the table
  std::vector<BagTrade> trades_;
  BagTerms terms_;
};

void BagExchange::per_sample_weight_gradients(
    ShardsRef grads, ShardsRef given, ShardsRef shards, Gradients& result) {
  std::vector<at::Tensor> own;
  for (size_t i = 0; i < trades_.size(); ++i) {
    const auto& trade = trades_[i];
    own.push_back(embedding_bag_weights_backward(
        grads[i], shards[i], trade.part, trade.own));
  }
  if (terms_.pooled) {
    Shards theirs;
    for (size_t i = 0; i < trades_.size(); ++i) {
      theirs.push_back(embedding_bag_weights_backward(
          given[i], shards[i], trades_[i].part, trades_[i].asked.input));
    }
    theirs = move(theirs, &BagTrade::asked_entries, &BagTrade::sent_entries);
    for (size_t i = 0; i < trades_.size(); ++i) {
      own[i].index_copy_(
          0, trades_[i].route.places.to(own[i].device()), theirs[i]);
    }
  } else {
    for (size_t i = 0; i < trades_.size(); ++i) {
      own[i].add_(weights_of_fetched(trades_[i], grads[i]));
    }
  }
  for (size_t i = 0; i < trades_.size(); ++i) {
    if (bags_[i].weights.defined()) {
      result.weights[i] = own[i];
    }
  }
}

}  // namespace

c10::intrusive_ptr<BagVisit> make_bag_exchange(
    SpecPtr table,
    int64_t mesh_dim,
    std::vector<RankBags> bags,
    const BagQuery& query) {
  return c10::make_intrusive<BagExchange>(
      std::move(table), mesh_dim, std::move(bags), query);
}

}  // namespace tessera::detail
