#include <ATen/ops/cat.h>

#include "dispatch/bag_trade.h"

namespace tessera::detail {

namespace {

BagInput in_dtype(BagInput input, at::ScalarType dtype) {
  if (input.per_sample_weights.has_value()) {
    input.per_sample_weights = input.per_sample_weights->to(dtype);
  }
  return input;
}

// Where sums are differentiated, means have been divided already.
BagMode backward_mode(const BagTrade& trade) {
  return trade.mode == BagMode::kMax ? BagMode::kMax : BagMode::kSum;
}

}  // namespace

at::Tensor grad_of_sums(
    const BagTrade& trade, const at::Tensor& grad, at::ScalarType sum_dtype) {
  return trade.mode == BagMode::kMean ? grad.to(sum_dtype).div(trade.counts)
                                      : grad;
}

at::Tensor grad_of_listed(const BagTrade& trade, const at::Tensor& grad) {
  auto listed = grad.index_select(0, trade.listed);
  if (trade.mode == BagMode::kMax) {
    listed.masked_fill_(
        trade.winners.index_select(0, trade.listed).ne(trade.their_winners), 0);
  }
  return listed;
}

at::Tensor grad_of_fetched(const BagTrade& trade, const at::Tensor& grad) {
  return embedding_bag_dense_backward(
      grad,
      trade.wanted.wanted.size(0),
      fetched_part(trade),
      in_dtype(trade.by_fetched, grad.scalar_type()),
      backward_mode(trade),
      trade.mode == BagMode::kMax ? std::optional(trade.winners)
                                  : std::nullopt);
}

at::Tensor factors_of_fetched(const BagTrade& trade, const at::Tensor& grad) {
  return embedding_bag_weights_backward(
      grad, trade.fetched, fetched_part(trade), trade.by_fetched);
}

at::Tensor grad_of_part(
    const BagTrade& trade,
    const at::Tensor& grad,
    const at::Tensor& given,
    int64_t padding_idx) {
  const auto& asked = trade.asked.input;
  const int64_t entries = trade.own.indices.size(0);
  const int64_t bags = grad.size(0);
  BagInput both = trade.own;
  both.padding_idx = padding_idx;
  auto winners = trade.winners;
  auto grads = grad;
  if (given.size(0) > 0) {
    both.indices = at::cat({trade.own.indices, asked.indices});
    both.offsets = at::cat(
        {trade.own.offsets.narrow(0, 0, bags), asked.offsets.add(entries)});
    if (trade.own.per_sample_weights.has_value()) {
      both.per_sample_weights =
          at::cat({*trade.own.per_sample_weights, *asked.per_sample_weights});
    }
    if (trade.mode == BagMode::kMax) {
      winners = at::cat(
          {trade.winners,
           trade.asked_winners.add(entries).masked_fill_(
               trade.asked_winners.lt(0), -1)});
    }
    grads = at::cat({grad, given});
  }
  return embedding_bag_dense_backward(
      grads,
      trade.held,
      trade.part,
      in_dtype(std::move(both), grad.scalar_type()),
      backward_mode(trade),
      trade.mode == BagMode::kMax ? std::optional(winners) : std::nullopt);
}

}  // namespace tessera::detail
