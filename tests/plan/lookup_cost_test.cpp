#include "plan/lookup_cost.h"

#include <gtest/gtest.h>

namespace tessera::detail {
namespace lookup_cost_test {

TEST(LookupCost, FewIndicesAreGathered) {
  const LookupSize few{
      .ranks = 4, .indices = 8, .index_bytes = 8, .row_bytes = 64};
  EXPECT_LT(gather_cost(few), exchange_cost(few));
}

TEST(LookupCost, ManyRowsAreExchanged) {
  const LookupSize many{
      .ranks = 4, .indices = 4096, .index_bytes = 8, .row_bytes = 256};
  EXPECT_LT(exchange_cost(many), gather_cost(many));
  // The rows of the others would be sent as well, so once a rank.
  EXPECT_GT(gather_cost(many), 3 * exchange_cost(many));
}

TEST(LookupCost, OneRankIsFree) {
  const LookupSize alone{
      .ranks = 1, .indices = 4096, .index_bytes = 8, .row_bytes = 256};
  EXPECT_EQ(gather_cost(alone), 0);
  EXPECT_EQ(exchange_cost(alone), 0);
}

TEST(LookupCost, BagsAreExchangedWhereTheyAreMany) {
  const BagLookupSize few{
      .entries = {.ranks = 4, .indices = 8, .index_bytes = 8, .row_bytes = 64},
      .bags = 2,
      .per_sample_weight_bytes = 0,
      .argmax_bytes = 0};
  EXPECT_LT(gather_cost(few), exchange_cost(few));
  // Long bags are pooled where their rows are: as many rows as are gathered,
  // but each index goes to only one rank.
  const BagLookupSize long_bags{
      .entries =
          {.ranks = 4, .indices = 40960, .index_bytes = 8, .row_bytes = 256},
      .bags = 2048,
      .per_sample_weight_bytes = 4,
      .argmax_bytes = 0};
  EXPECT_LT(exchange_cost(long_bags), gather_cost(long_bags));
  // Bags of one entry are rows.
  BagLookupSize short_bags = long_bags;
  short_bags.bags = short_bags.entries.indices;
  EXPECT_GT(gather_cost(short_bags), 3 * exchange_cost(short_bags));
  // Maxima are gathered with their argmax, twice over.
  BagLookupSize maxima = long_bags;
  maxima.argmax_bytes = 256;
  EXPECT_GT(gather_cost(maxima), 2 * gather_cost(long_bags));
}

}  // namespace lookup_cost_test
}  // namespace tessera::detail
