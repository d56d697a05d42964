#include "embedding/bag_terms.h"

#include <algorithm>
#include <limits>

#include "comm/result.h"
#include "dispatch/run_by_rule.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

int64_t size_of(at::ScalarType dtype) {
  return static_cast<int64_t>(c10::elementSize(dtype));
}

// Both as in docs/embedding_bags.md, of a forward pass. The backward passes
// send the same rows back, so that they change little in the choice.
struct Bytes {
  int64_t pooled;
  int64_t rows;
};

Bytes bytes_of(
    const Spec& table,
    const BagQuery& query,
    const BagTerms& terms,
    const BagNotice& sum) {
  const int64_t index =
      table.sizes[0] <= std::numeric_limits<int32_t>::max() ? 4 : 8;
  const int64_t element =
      query.mode == BagMode::kMax
          ? size_of(table.dtype) + size_of(terms.argmax_dtype)
          : size_of(accumulate_dtype(table.dtype));
  const int64_t weight =
      terms.per_sample_weights ? size_of(table.dtype) : 0;
  // The most columns that a rank has: groups with fewer decide alike.
  const int64_t width =
      local_shape(table.sizes, table.mesh, table.placements, 0)[1];
  return {
      sum.all_bags * (index + width * element) +
          sum.all_indices * (index + weight),
      sum.all_rows * (index + width * size_of(table.dtype))};
}

}  // namespace

BagTerms settle_terms(
    const Spec& table, const BagQuery& query, const BagNotices& told) {
  BagNotice sum;
  for (const auto& notice : told) {
    sum.all_bags += notice.all_bags;
    sum.all_indices += notice.all_indices;
    sum.all_rows += notice.all_rows;
    sum.longest = std::max(sum.longest, notice.longest);
  }
  BagTerms terms;
  terms.silent = sum.all_indices == 0;
  terms.per_sample_weights = any_flag(told, BagNotice::kPerSampleWeights);
  terms.weights_need_grad = any_flag(told, BagNotice::kGradient);
  terms.padding = any_flag(told, BagNotice::kPadding);
  // Winners are counted from 0, and one number is kept for "none".
  terms.argmax_dtype =
      sum.longest <= std::numeric_limits<uint8_t>::max() ? at::kByte : at::kInt;
  terms.pooled = query.strategy == BagStrategy::Pooled;
  if (query.strategy == BagStrategy::Cheapest) {
    const auto bytes = bytes_of(table, query, terms, sum);
    terms.pooled = bytes.pooled < bytes.rows;
  }
  return terms;
}

BagNotices bag_notices(
    const BagTrade& trade, int64_t ranks, int64_t flags, int64_t fingerprint) {
  const auto& route = trade.route;
  BagNotice all;
  all.all_bags = total(route.bag_counts);
  all.all_indices = total(route.entry_counts);
  all.all_rows = total(route.row_counts);
  all.longest = route.longest;
  all.flags = flags;
  all.fingerprint = fingerprint;
  BagNotices notices(ranks, all);
  for (int64_t c = 0; c < ranks; ++c) {
    notices[c].bags = route.bag_counts[c];
    notices[c].indices = route.entry_counts[c];
    notices[c].rows = route.row_counts[c];
  }
  return notices;
}

void settle_trade(
    BagTrade& trade, const BagTerms& terms, const BagNotices& told) {
  const auto& route = trade.route;
  trade.sent_bags = terms.pooled ? route.bag_counts : route.row_counts;
  trade.sent_entries = terms.pooled ? route.entry_counts : route.row_counts;
  for (const auto& notice : told) {
    trade.asked_bags.push_back(terms.pooled ? notice.bags : notice.rows);
    trade.asked_entries.push_back(terms.pooled ? notice.indices : notice.rows);
  }
}

}  // namespace tessera::detail
