#include "plan/lookup_cost.h"

#include <gtest/gtest.h>

namespace tessera::detail {
namespace {

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

}  // namespace
}  // namespace tessera::detail
