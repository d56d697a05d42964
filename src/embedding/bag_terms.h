// What the ranks settle on before bags of a row-wise sharded table are
// exchanged. It follows from what all of them have told all others, so that
// every rank settles on the same.
#pragma once

#include "embedding/bag_census.h"
#include "embedding/bag_lookup.h"
#include "embedding/bag_trade.h"

namespace tessera::detail {

struct BagTerms {
  bool pooled = true;  // BagStrategy::Pooled or Rows
  bool silent = true;  // every entry's row lies where it is asked for
  bool per_sample_weights = false;  // some rank has per_sample_weights
  bool weights_need_grad = false;   // likewise
  bool padding = false;             // some rank has entries of padding
  // In which argmax of maxima are sent; its largest number means none.
  at::ScalarType argmax_dtype = at::kByte;
};

BagTerms settle_terms(
    const Spec& table, const BagQuery& query, const BagNotices& told);

// What a rank tells each of `ranks`.
BagNotices bag_notices(
    const BagTrade& trade, int64_t ranks, int64_t flags, int64_t fingerprint);

// Fills in how much goes where, now that the way is known.
void settle_trade(
    BagTrade& trade, const BagTerms& terms, const BagNotices& told);

}  // namespace tessera::detail
