#include <ATen/ops/cat.h>

#include "embedding/bag_trade.h"

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

// All bags that reach the rows held here: the rank's own, and those asked of it
// with the gradient `given`.
BagGradient both_kinds(
    const BagTrade& trade,
    const at::Tensor& grad,
    const at::Tensor& given,
    int64_t padding_idx) {
  const auto& asked = trade.asked.input;
  const int64_t entries = trade.own.indices.size(0);
  const bool max = trade.mode == BagMode::kMax;
  BagGradient both{
      grad,
      trade.part,
      in_dtype(trade.own, grad.scalar_type()),
      backward_mode(trade)};
  if (max) {
    both.argmax = trade.argmax;
  }
  if (given.size(0) > 0) {
    both.grad = at::cat({grad, given});
    both.input.indices = at::cat({trade.own.indices, asked.indices});
    both.input.offsets = at::cat(
        {trade.own.offsets.narrow(0, 0, grad.size(0)),
         asked.offsets.add(entries)});
    if (trade.own.per_sample_weights.has_value()) {
      both.input.per_sample_weights = at::cat(
          {*both.input.per_sample_weights,
           asked.per_sample_weights->to(grad.scalar_type())});
    }
    if (max) {
      both.argmax = at::cat(
          {trade.argmax,
           trade.asked_argmax.add(entries).masked_fill_(
               trade.asked_argmax.lt(0), -1)});
    }
  }
  both.input.padding_idx = padding_idx;
  return both;
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
        trade.argmax.index_select(0, trade.listed).ne(trade.their_argmax), 0);
  }
  return listed;
}

at::Tensor grad_of_fetched(const BagTrade& trade, const at::Tensor& grad) {
  BagGradient bags{
      grad,
      fetched_part(trade),
      in_dtype(trade.by_fetched, grad.scalar_type()),
      backward_mode(trade)};
  if (trade.mode == BagMode::kMax) {
    bags.argmax = trade.argmax;
  }
  return embedding_bag_dense_backward(bags, trade.wanted.wanted.size(0));
}

at::Tensor weights_of_fetched(const BagTrade& trade, const at::Tensor& grad) {
  return embedding_bag_weights_backward(
      grad, trade.fetched, fetched_part(trade), trade.by_fetched);
}

at::Tensor grad_of_part(
    const BagTrade& trade,
    const at::Tensor& grad,
    const at::Tensor& given,
    const BagQuery& query) {
  const auto backward = query.sparse ? embedding_bag_sparse_backward
                                     : embedding_bag_dense_backward;
  return backward(
      both_kinds(trade, grad, given, query.padding_idx), trade.held);
}

void step_part(
    const BagTrade& trade,
    const at::Tensor& shard,
    const at::Tensor& grad,
    const at::Tensor& given,
    const BagQuery& query) {
  if (trade.mode == BagMode::kMax ||
      c10::isReducedFloatingType(shard.scalar_type())) {
    embedding_bag_step_(
        shard, both_kinds(trade, grad, given, query.padding_idx), *query.step);
    return;
  }
  // One after the other, where that does not round more: nothing is copied.
  const auto step_by = [&](BagInput input, const at::Tensor& its_grad) {
    input.padding_idx = query.padding_idx;
    embedding_bag_step_(
        shard, {its_grad, trade.part, std::move(input)}, *query.step);
  };
  step_by(trade.own, grad);
  step_by(trade.asked.input, given);
}

}  // namespace tessera::detail
