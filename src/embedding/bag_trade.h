// One rank's side of an exchange of bags, and what it computes between the
// collectives. Plain tensors; no communication, no autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include "embedding/bag_lookup.h"
#include "embedding/bag_route.h"
#include "kernels/bag/bag.h"
#include "kernels/lookup/route.h"

namespace tessera::detail {

struct BagTrade {
  // Its own bags, whole: the kernels skip entries whose rows lie elsewhere.
  BagInput own;
  BagMode mode;
  BagPart part;       // of the table that this rank holds
  int64_t held;       // how many rows that is
  at::Tensor counts;  // mean: [bags, 1] of the sum dtype, 1 for empty bags
  at::Tensor argmax;  // max: [bags, d], int32, places in own.indices

  // As the one who asks. Pooled:
  BagRoute route;
  at::Tensor listed;        // route.bags, on the table's device
  at::Tensor their_argmax;  // max: [listed, d]: as `argmax`, of each owner
  // Rows:
  Route wanted;         // distinct rows of others
  at::Tensor fetched;   // these rows
  BagInput by_fetched;  // its own bags, as entries of `fetched`

  // By owner: how many bags (Rows: rows) it is asked for, with how many
  // entries.
  Parts sent_bags;
  Parts sent_entries;

  // As an owner. By who asks: the same of what is asked here.
  AskedBags asked;
  Parts asked_bags;
  Parts asked_entries;
  at::Tensor asked_argmax;  // max: [asked bags, d], places in asked.input
};

// What rank `self` can find out without the others. `bounds` are the owners'
// first rows, then the end of the table.
BagTrade make_trade(
    const RankBags& bags,
    const BagQuery& query,
    c10::IntArrayRef bounds,
    int64_t self,
    at::ScalarType index_dtype,
    at::ScalarType sum_dtype);

// Finds the distinct rows of others, for a trade of rows.
void find_wanted(BagTrade& trade, c10::IntArrayRef bounds);

// Pooled rows of part of the entries; for max who won them.
struct PooledBags {
  at::Tensor values;
  at::Tensor argmax;
};

// What an owner sends back for the bags asked of it: sums in `sum_dtype`, or
// maxima with argmax counted from the asker's first entry, of `argmax_dtype`,
// whose largest number means none. Keeps the argmax.
PooledBags pool_asked(
    BagTrade& trade,
    const at::Tensor& shard,
    at::ScalarType sum_dtype,
    at::ScalarType argmax_dtype);

// The rank's bags, from its own rows and from what owners sent back.
at::Tensor pool_with_pooled(
    BagTrade& trade,
    const at::Tensor& shard,
    const PooledBags& theirs,
    at::ScalarType sum_dtype);

// The rank's bags, from its own rows and from those that it fetched.
at::Tensor pool_with_fetched(
    BagTrade& trade, const at::Tensor& shard, at::ScalarType sum_dtype);

// Numbers the entries by the rows of `trade.wanted`, for `by_fetched`.
void number_fetched(BagTrade& trade);
// The table that these numbers are of: the rows fetched and two more, of which
// one stands for rows held here and one for padding.
BagPart fetched_part(const BagTrade& trade);

// The gradient of sums whose means or maxima have the gradient `grad`.
at::Tensor grad_of_sums(
    const BagTrade& trade, const at::Tensor& grad, at::ScalarType sum_dtype);

// What owners need to know of the gradient of the bags asked of them: a row for
// each, 0 where another's entry won.
at::Tensor grad_of_listed(const BagTrade& trade, const at::Tensor& grad);

// The gradient of the rows fetched, in `grad`'s dtype.
at::Tensor grad_of_fetched(const BagTrade& trade, const at::Tensor& grad);

// The share of the rows fetched in the gradient of the rank's
// per_sample_weights.
at::Tensor weights_of_fetched(const BagTrade& trade, const at::Tensor& grad);

// The gradient of the rows held here: of its own bags, and of those asked of it
// with the gradient `given`, which has the dtype of `grad`. In one pass, so
// that the part is written once; sparse if the query says so.
at::Tensor grad_of_part(
    const BagTrade& trade,
    const at::Tensor& grad,
    const at::Tensor& given,
    const BagQuery& query);

// Moves the rows of `shard` against this gradient by query.step. Requires: it
// has one.
void step_part(
    const BagTrade& trade,
    const at::Tensor& shard,
    const at::Tensor& grad,
    const at::Tensor& given,
    const BagQuery& query);

// Scales the rows of `shard` that are looked up down to max_norm, each once.
// `padding`: some rank has entries of it.
void renorm_part(
    const BagTrade& trade,
    at::Tensor shard,
    const BagQuery& query,
    bool padding);

}  // namespace tessera::detail
