// Lookups by the row exchange.
#include <ATen/ops/arange.h>

#include "embedding/make_lookup.h"
#include "kernels/lookup/embedding.h"

namespace tessera::detail {

namespace {

class RowLookup final : public TableLookup {
 public:
  RowLookup(
      LookupRequest request, const SettledLookup& settled, RowExchange exchange)
      : TableLookup(std::move(request), settled),
        exchange_(std::move(exchange)) {}

  Gradients backward(const BackwardPass& pass) override {
    const auto& [grads, weight, table_needs_grad] = pass;
    Shards sums;
    for (size_t i = 0; i < grads.size(); ++i) {
      sums.push_back(grad_of_fetched(i, grads[i]));
    }
    const auto given = exchange_.give_back(sums);
    Gradients result;
    result.per_sample_weights.resize(grads.size());
    for (size_t i = 0; i < grads.size(); ++i) {
      if (settled_.weights_need_grad && has_weights(i)) {
        result.per_sample_weights[i] = embedding_bag_weights_backward(
            grads[i], fetched_[i], fetched_part(i), bags(i));
      }
      if (!table_needs_grad) {
        continue;
      }
      if (query().step.has_value()) {
        step(i, current_shards(weight)[i], given[i]);
      } else {
        result.table.push_back(grad_of_held(i, given[i]).to(table().dtype));
      }
    }
    return result;
  }

 private:
  at::Tensor looked_up(size_t i) const override { return exchange_.asked(i); }

  std::vector<at::Tensor> look_up(ShardsRef shards) override {
    const auto fetched = exchange_.fetch(shards);
    std::vector<at::Tensor> results;
    for (size_t i = 0; i < fetched.size(); ++i) {
      results.push_back(
          query().pools ? pool(i, fetched[i])
                        : lookup_rows(
                              fetched[i],
                              exchange_.route(i).place,
                              0,
                              fetched[i].size(0)));
    }
    if (settled_.weights_need_grad) {
      fetched_ = fetched;
    }
    return results;
  }

  int64_t wanted(size_t i) const { return exchange_.route(i).wanted.size(0); }
  // The rows fetched as a table; one more row stands for padding.
  BagPart fetched_part(size_t i) const { return {0, wanted(i) + 1}; }

  // The rank's bags, as entries of the rows fetched.
  BagIndices bags(size_t i) const {
    return {
        .indices = exchange_.route(i).place,
        .offsets = input(i).bounds,
        .include_last_offset = true,
        .padding_idx = query().left_out() < 0 ? -1 : wanted(i),
        .per_sample_weights = weights_of(i)};
  }

  at::Tensor pool(size_t i, const at::Tensor& fetched) {
    if (query().mode != BagMode::kMax) {
      return embedding_bag_part(
          fetched, fetched_part(i), bags(i), query().mode);
    }
    auto maxima = embedding_bag_max_part(
        fetched, fetched_part(i), bags(i), BagEmpty::kZero);
    argmax_.push_back(std::move(maxima.argmax));
    return maxima.values;
  }

  // Gradients of equal rows are added up before they are sent. Those of bags
  // are added up again by the owners: rounded once, at the end.
  at::Tensor grad_of_fetched(size_t i, const at::Tensor& given) const {
    const auto grad = given.to(
        query().caller == &kEmbeddingCaller ? table().dtype : sum_dtype());
    if (!query().pools) {
      return lookup_rows_backward(
          grad, {exchange_.route(i).place, 0, wanted(i), wanted(i)}, -1, false);
    }
    BagGradient gradient{grad, fetched_part(i), bags(i), query().mode};
    if (auto& weights = gradient.input.per_sample_weights;
        weights.has_value()) {
      weights = weights->to(grad.scalar_type());
    }
    if (query().mode == BagMode::kMax) {
      gradient.argmax = argmax_[i];
    }
    return embedding_bag_dense_backward(gradient, wanted(i));
  }

  at::Tensor grad_of_held(size_t i, const at::Tensor& given) const {
    const auto held = held_rows(i);
    const auto& asked = exchange_.asked(i);
    const int64_t padding = query().padding_idx;
    return query().sparse
               ? lookup_rows_sparse_backward(
                     given, {asked, held.begin, held.size, rows()}, padding)
               : lookup_rows_backward(
                     given,
                     {asked, held.begin, held.size, rows()},
                     padding,
                     false);
  }

  // Each row asked for is a bag of one entry.
  void step(size_t i, const at::Tensor& shard, const at::Tensor& given) const {
    const auto& asked = exchange_.asked(i);
    const BagIndices input{
        .indices = asked,
        .offsets = at::arange(asked.size(0), asked.options().dtype(at::kLong)),
        .padding_idx = query().padding_idx};
    embedding_bag_step_(
        shard, {given, {held_rows(i).begin, rows()}, input}, *query().step);
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
