// Lookups by the row exchange.
#include <ATen/ops/arange.h>

#include "embedding/bag_op.h"
#include "embedding/lookup_op.h"
#include "embedding/make_lookup.h"

namespace tessera::detail {

namespace {

class RowLookup final : public TableLookup {
 public:
  RowLookup(
      LookupRequest request, const SettledLookup& settled, RowExchange exchange)
      : TableLookup(std::move(request), settled),
        exchange_(std::move(exchange)) {}

 private:
  at::Tensor looked_up(size_t i) const override { return exchange_.asked(i); }

  std::vector<at::Tensor> look_up(ShardsRef shards) override {
    const auto fetched = exchange_.fetch(shards);
    std::vector<at::Tensor> results;
    for (size_t i = 0; i < fetched.size(); ++i) {
      if (!query().pools) {
        results.push_back(lookup_rows(
            fetched[i], exchange_.route(i).place, 0, fetched[i].size(0)));
        continue;
      }
      auto pooled =
          pool_part(fetched[i], fetched_part(i), bags(i), query().mode);
      argmax_.push_back(std::move(pooled.argmax));
      results.push_back(std::move(pooled.values));
    }
    if (settled_.weights_need_grad) {
      fetched_ = fetched;
    }
    return results;
  }

  // Gradients of equal rows are added up before they are sent. Those of bags
  // are added up again by the owners: rounded once, at the end.
  Shards to_owners(ShardsRef grads) const override {
    const auto dtype =
        query().caller == &kEmbeddingCaller ? table().dtype : sum_dtype();
    Shards sums;
    for (size_t i = 0; i < grads.size(); ++i) {
      const auto grad = grads[i].to(dtype);
      sums.push_back(
          query().pools
              ? embedding_bag_dense_backward(
                    bag_gradient(
                        grad,
                        fetched_part(i),
                        bags(i),
                        query().mode,
                        argmax_[i]),
                    wanted(i))
              : lookup_rows_backward(
                    grad,
                    {exchange_.route(i).place, 0, wanted(i), wanted(i)},
                    -1,
                    false));
    }
    return exchange_.give_back(sums);
  }

  Shards weight_gradients(
      ShardsRef grads, ShardsRef, ShardsRef) const override {
    Shards own;
    for (size_t i = 0; i < grads.size(); ++i) {
      own.push_back(
          has_weights(i) ? embedding_bag_weights_backward(
                               grads[i], fetched_[i], fetched_part(i), bags(i))
                         : at::Tensor());
    }
    return own;
  }

  at::Tensor part_gradient(size_t i, const at::Tensor& given) const override {
    const auto held = held_rows(i);
    return rows_gradient(
        given,
        {exchange_.asked(i), held.begin, held.size, rows()},
        {query().padding_idx, false, query().sparse});
  }

  // Each row asked for is a bag of one entry.
  BagGradient reaching(size_t i, const at::Tensor& given) const override {
    const auto& asked = exchange_.asked(i);
    return {
        given,
        part(i),
        {.indices = asked,
         .offsets = at::arange(asked.size(0), asked.options().dtype(at::kLong)),
         .padding_idx = query().padding_idx}};
  }

  int64_t wanted(size_t i) const { return exchange_.route(i).wanted.size(0); }
  // The rows fetched as a table; one more row stands for padding.
  BagPart fetched_part(size_t i) const { return {0, wanted(i) + 1}; }

  // The rank's bags, as entries of the rows fetched.
  BagIndices bags(size_t i) const {
    BagIndices own = input(i);
    own.indices = exchange_.route(i).place;
    own.padding_idx = query().left_out() < 0 ? -1 : wanted(i);
    own.per_sample_weights = weights_of(i);
    return own;
  }

  const RowExchange exchange_;
  // Of the forward pass: for the gradient of per_sample_weights the rows, and
  // of maxima the places among the indices.
  Shards fetched_;
  Shards argmax_;
};

}  // namespace

LookupPtr make_row_lookup(
    LookupRequest request, const SettledLookup& settled, RowExchange exchange) {
  return c10::make_intrusive<RowLookup>(
      std::move(request), settled, std::move(exchange));
}

}  // namespace tessera::detail
