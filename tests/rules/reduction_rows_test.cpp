#include <gtest/gtest.h>

#include "tests/rules/printed_rows.h"

namespace tessera::rule_tests {
namespace reduction_rows_test {

TEST(ReductionRows, SumOfAll) {
  EXPECT_EQ(
      rows("aten::sum", {tensor({4, 3})}),
      "S(0)->P(sum) | S(1)->P(sum) | P(sum)->P(sum) | P(avg)->P(avg)");
  EXPECT_EQ(rows("aten::sum", {tensor({})}), "P(sum)->P(sum) | P(avg)->P(avg)");
}

TEST(ReductionRows, SumByDim) {
  const auto sum = "aten::sum.dim_IntList";
  const auto x = tensor({4, 3, 2});
  EXPECT_EQ(
      shard_rows(sum, {x}, {{"dim", ints({1})}}),
      "S(0)->S(0) | S(1)->P(sum) | S(2)->S(1)");
  EXPECT_EQ(
      shard_rows(sum, {x}, {{"dim", ints({-2})}, {"keepdim", true}}),
      "S(0)->S(0) | S(1)->P(sum) | S(2)->S(2)");
  EXPECT_EQ(
      shard_rows(sum, {x}, {{"dim", ints({0, -1})}}),
      "S(0)->P(sum) | S(1)->S(0) | S(2)->P(sum)");
  EXPECT_EQ(
      shard_rows(sum, {tensor({4})}, {{"dim", ints({})}}), "S(0)->P(sum)");
  EXPECT_EQ(shard_rows(sum, {tensor({4})}, {}), "S(0)->P(sum)");
}

TEST(ReductionRows, PendingTermsKeepTheirDtype) {
  EXPECT_EQ(
      rows("aten::sum", {tensor({})}, {{"dtype", c10::kDouble}}),
      "P(sum)->P(sum) | P(avg)->P(avg)");
  EXPECT_EQ(rows("aten::sum", {tensor({})}, {{"dtype", c10::kBFloat16}}), "");
  EXPECT_EQ(rows("aten::sum", {tensor({}, c10::kInt)}), "");
  EXPECT_EQ(
      rows("aten::sum", {tensor({}, c10::kLong)}),
      "P(sum)->P(sum) | P(avg)->P(avg)");
  EXPECT_EQ(rows("aten::sum", {tensor({}, c10::kBool)}), "");
}

TEST(ReductionRows, ProductsAndCounts) {
  EXPECT_EQ(
      rows("aten::prod", {tensor({4})}),
      "S(0)->P(product) | P(product)->P(product)");
  EXPECT_EQ(
      shard_rows("aten::prod.dim_int", {tensor({4, 3})}, {{"dim", -1}}),
      "S(0)->S(0) | S(1)->P(product)");
  EXPECT_EQ(rows("aten::nansum", {tensor({4})}), "S(0)->P(sum)");
  EXPECT_EQ(
      rows("aten::count_nonzero", {tensor({4, 3})}, {{"dim", 1}}),
      "S(0)->S(0) | S(1)->P(sum)");
}

TEST(ReductionRows, ExtremaNeedAnElementOnEveryRank) {
  EXPECT_EQ(
      rows("aten::amax", {tensor({4, 3})}, {{"dim", ints({1})}}),
      "S(0)->S(0) | S(1)->P(max) filled | P(max)->P(max)");
  EXPECT_EQ(
      rows("aten::min", {tensor({4})}), "S(0)->P(min) filled | P(min)->P(min)");
  EXPECT_EQ(rows("aten::aminmax", {tensor({4})}), "S(0)->P(min),P(max) filled");
}

TEST(ReductionRows, TruthValues) {
  EXPECT_EQ(rows("aten::any", {tensor({4})}), "S(0)->P(max)");
  EXPECT_EQ(
      rows("aten::all.dim", {tensor({4, 3})}, {{"dim", 0}}),
      "S(0)->P(min) | S(1)->S(0)");
  EXPECT_EQ(
      rows("aten::all.dims", {tensor({4, 3})}, {{"keepdim", true}}),
      "S(0)->P(min) | S(1)->P(min)");
  // An empty list of dims reduces none.
  EXPECT_EQ(rows("aten::any.dims", {tensor({4})}, {{"dim", ints({})}}), "");
}

TEST(ReductionRows, PositionsNeedTheWholeDimension) {
  const auto x = tensor({4, 3});
  EXPECT_EQ(rows("aten::max.dim", {x}, {{"dim", 0}}), "S(1)->S(0),S(0)");
  EXPECT_EQ(rows("aten::argmax", {x}), "");
  EXPECT_EQ(
      rows("aten::argmin", {x}, {{"dim", -1}, {"keepdim", true}}),
      "S(0)->S(0)");
  EXPECT_EQ(rows("aten::mode", {x}, {{"keepdim", true}}), "S(0)->S(0),S(0)");
  EXPECT_EQ(
      rows("aten::kthvalue", {x}, {{"k", 1}, {"dim", 0}}), "S(1)->S(0),S(0)");
  EXPECT_EQ(output_sizes("aten::median.dim", {x}, {{"dim", 0}}), "[3] [3]");
  EXPECT_EQ(
      output_sizes("aten::median.dim", {x}, {{"dim", 0}, {"keepdim", true}}),
      "[1, 3] [1, 3]");
}

TEST(ReductionRows, SortsAndScans) {
  const auto x = tensor({4, 3});
  EXPECT_EQ(rows("aten::sort", {x}), "S(0)->S(0),S(0)");
  EXPECT_EQ(rows("aten::topk", {x}, {{"k", 2}, {"dim", 0}}), "S(1)->S(1),S(1)");
  EXPECT_EQ(
      rows("aten::cumsum", {x}, {{"dim", 0}}),
      "S(1)->S(1) | P(sum)->P(sum) | P(avg)->P(avg)");
  EXPECT_EQ(
      rows("aten::cumsum", {tensor({4, 3}, c10::kInt)}, {{"dim", 0}}),
      "S(1)->S(1)");
  EXPECT_EQ(rows("aten::cummax", {x}, {{"dim", 1}}), "S(0)->S(0),S(0)");
}

}  // namespace reduction_rows_test
}  // namespace tessera::rule_tests
