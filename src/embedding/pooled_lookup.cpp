// Bags of a row-wise sharded table that the owners of rows pool.
#include "embedding/pooled_lookup.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "embedding/bag_op.h"
#include "embedding/make_lookup.h"

namespace tessera::detail {

std::vector<Parts> BagCounts::request_sizes() const {
  auto sizes = bags;
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (size_t c = 0; c < sizes[i].size(); ++c) {
      sizes[i][c] += entries[i][c];
    }
  }
  return sizes;
}

BagCounts told_counts(c10::ArrayRef<BagRequests> told) {
  BagCounts counts;
  for (const auto& requests : told) {
    counts.bags.push_back(each_of(requests, &BagRequest::bags));
    counts.entries.push_back(each_of(requests, &BagRequest::indices));
  }
  return counts;
}

Shards PooledLookup::pool_asked(
    ShardsRef tables, BagEmpty empty, at::ScalarType dtype) {
  Shards values;
  for (size_t i = 0; i < tables.size(); ++i) {
    auto pooled = pool_part(tables[i], part(i), asked(i), mode_, empty, dtype);
    values.push_back(std::move(pooled.values));
    asked_argmax_.push_back(std::move(pooled.argmax));
  }
  return values;
}

BagGradient PooledLookup::reaching(size_t i, const at::Tensor& given) const {
  auto gradient =
      bag_gradient(given, part(i), asked(i), mode_, asked_argmax_[i]);
  gradient.input.padding_idx = query().padding_idx;
  return gradient;
}

// grad . row for each entry, computed where the row is.
Shards PooledLookup::weight_gradients(
    ShardsRef /*grads*/, ShardsRef given, ShardsRef tables) const {
  Shards products;
  for (size_t i = 0; i < tables.size(); ++i) {
    products.push_back(
        embedding_bag_weights_backward(given[i], tables[i], part(i), asked(i)));
  }
  return entries_to_askers(products);
}

namespace {

class RowPooledLookup final : public PooledLookup {
 public:
  RowPooledLookup(
      LookupRequest request,
      const Handshake& handshake,
      std::vector<BagRoute> routes,
      at::ScalarType argmax_dtype)
      : PooledLookup(
            std::move(request), handshake.settled, /*whole_bags=*/false),
        argmax_dtype_(argmax_dtype),
        move_{request_.table, request_.mesh_dim, settled_.silent},
        routes_(std::move(routes)),
        sent_counts_(counts_of(routes_)),
        asked_counts_(told_counts(handshake.told)),
        asked_(ask_owners()),
        lengths_(lengths_of_means()) {}

 private:
  const BagIndices& asked(size_t i) const override { return asked_[i].input; }

  std::vector<at::Tensor> look_up(ShardsRef shards) override {
    const auto values = move_(
        pool_asked(shards, BagEmpty::kLowest, sum_dtype()),
        asked_counts_.bags,
        sent_counts_.bags);
    Shards argmax;
    if (mode_ == BagMode::kMax) {
      argmax = move_(sent_argmax(), asked_counts_.bags, sent_counts_.bags);
    }
    std::vector<at::Tensor> results;
    for (size_t i = 0; i < values.size(); ++i) {
      results.push_back(
          argmax.empty() ? add(i, values[i]) : merge(i, values[i], argmax[i]));
    }
    return results;
  }

  // What owners need to know of the gradient of the bags asked of them: a row
  // for each, 0 where another's entry is the argmax.
  Shards to_owners(ShardsRef grads) const override {
    Shards sent;
    for (size_t i = 0; i < grads.size(); ++i) {
      const auto& bags = routes_[i].bags;
      const auto grad = query().mode == BagMode::kMean
                            ? grads[i].to(sum_dtype()).div(lengths_[i])
                            : grads[i];
      sent.push_back(grad.index_select(0, bags));
      if (mode_ == BagMode::kMax) {
        sent[i].masked_fill_(
            argmax_[i].index_select(0, bags).ne(owners_argmax_[i]), 0);
      }
    }
    return move_(sent, sent_counts_.bags, asked_counts_.bags);
  }

  Shards entries_to_askers(ShardsRef numbers) const override {
    const auto own =
        move_(numbers, asked_counts_.entries, sent_counts_.entries);
    Shards in_order;
    for (size_t i = 0; i < own.size(); ++i) {
      in_order.push_back(at::zeros(input(i).indices.sizes(), own[i].options())
                             .index_copy_(0, routes_[i].places, own[i]));
    }
    return in_order;
  }

  static BagCounts counts_of(const std::vector<BagRoute>& routes) {
    BagCounts counts;
    for (const auto& route : routes) {
      counts.bags.push_back(route.bag_counts);
      counts.entries.push_back(route.entry_counts);
    }
    return counts;
  }

  // Sends each owner the entries of its bags, and their weights.
  std::vector<AskedBags> ask_owners() const {
    Shards requests;
    Shards weights;
    for (size_t i = 0; i < routes_.size(); ++i) {
      requests.push_back(routes_[i].request);
      if (settled_.per_sample_weights) {
        weights.push_back(weights_of(i)->index_select(0, routes_[i].places));
      }
    }
    requests = move_(
        requests, sent_counts_.request_sizes(), asked_counts_.request_sizes());
    if (settled_.per_sample_weights) {
      weights = move_(weights, sent_counts_.entries, asked_counts_.entries);
    }
    std::vector<AskedBags> asked;
    for (size_t i = 0; i < requests.size(); ++i) {
      asked.push_back(unpack_requests(
          {requests[i], asked_counts_.bags[i], asked_counts_.entries[i]},
          absent_row(i)));
      if (settled_.per_sample_weights) {
        asked[i].input.per_sample_weights = weights[i];
      }
    }
    return asked;
  }

  // A row that the part does not hold, where the kernels must know whether a
  // bag's first entry is elsewhere. (Only then there is such a row.)
  int64_t absent_row(size_t i) const {
    const auto held = held_rows(i);
    if (mode_ != BagMode::kMax) {
      return -1;
    }
    return held.begin > 0 ? 0 : held.size;
  }

  Shards lengths_of_means() const {
    Shards lengths;
    for (size_t i = 0; i < routes_.size(); ++i) {
      if (query().mode == BagMode::kMean) {
        lengths.push_back(
            bag_counts(input(i)).clamp_min_(1).to(sum_dtype()).unsqueeze(1));
      }
    }
    return lengths;
  }

  // The argmax of the bags asked, counted from the asker's first entry.
  Shards sent_argmax() const {
    Shards sent;
    for (size_t i = 0; i < asked_.size(); ++i) {
      const auto& argmax = asked_argmax(i);
      sent.push_back(argmax.sub(asked_[i].firsts)
                         .masked_fill_(argmax.lt(0), no_argmax(argmax_dtype_))
                         .to(argmax_dtype_));
    }
    return sent;
  }

  // The rank's bags, from what the owners of their rows sent.
  at::Tensor add(size_t i, const at::Tensor& values) const {
    auto sums =
        at::zeros({result_count(input(i)), values.size(1)}, values.options());
    add_replies_(sums, routes_[i], values);
    if (query().mode == BagMode::kMean) {
      sums.div_(lengths_[i]);
    }
    return sums.to(table().dtype);
  }

  at::Tensor merge(
      size_t i, const at::Tensor& values, const at::Tensor& argmax) {
    const Sizes sizes{result_count(input(i)), values.size(1)};
    const BagMax all{
        at::zeros(sizes, values.options()),
        at::full(sizes, -1, argmax.options().dtype(at::kInt))};
    const BagMax parts{values, argmax_places(routes_[i], argmax)};
    int64_t begin = 0;
    for (const int64_t bags : routes_[i].bag_counts) {
      merge_bag_max_(
          all,
          routes_[i].bags.narrow(0, begin, bags),
          {parts.values.narrow(0, begin, bags),
           parts.argmax.narrow(0, begin, bags)});
      begin += bags;
    }
    argmax_.push_back(all.argmax);
    owners_argmax_.push_back(parts.argmax);
    return all.values;
  }

  const at::ScalarType argmax_dtype_;
  const RowMover move_;
  const std::vector<BagRoute> routes_;
  const BagCounts sent_counts_;
  const BagCounts asked_counts_;
  const std::vector<AskedBags> asked_;
  // Mean: of each bag, [bags, 1] of the sum dtype, 1 for empty bags.
  const Shards lengths_;
  // Of maxima, int32: the places of the rank's bags among its indices, [bags,
  // d], -1 for none, and those that owners sent, [routes_.bags, d].
  Shards argmax_;
  Shards owners_argmax_;
};

}  // namespace

LookupPtr make_pooled_lookup(
    LookupRequest request,
    const Handshake& handshake,
    std::vector<BagRoute> routes,
    at::ScalarType argmax_dtype) {
  return c10::make_intrusive<RowPooledLookup>(
      std::move(request), handshake, std::move(routes), argmax_dtype);
}

}  // namespace tessera::detail
