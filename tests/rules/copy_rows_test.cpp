#include <gtest/gtest.h>

#include "tests/rules/printed_rows.h"

namespace tessera::rule_tests {
namespace copy_rows_test {

constexpr auto kEveryPending =
    "P(sum)->P(sum) | P(avg)->P(avg) | P(product)->P(product) | "
    "P(min)->P(min) | P(max)->P(max)";

TEST(CopyRows, CloneKeepsTheLayout) {
  EXPECT_EQ(
      shard_rows("aten::clone", {tensor({4, 3})}), "S(0)->S(0) | S(1)->S(1)");
  EXPECT_EQ(rows("aten::clone", {tensor({})}), kEveryPending);
  EXPECT_EQ(rows("aten::lift_fresh", {tensor({})}), kEveryPending);
}

TEST(CopyRows, CastsOfPendingTerms) {
  const auto cast = [](c10::ScalarType from, c10::ScalarType to) {
    return rows("aten::_to_copy", {tensor({}, from)}, {{"dtype", to}});
  };
  EXPECT_EQ(cast(c10::kFloat, c10::kDouble), kEveryPending);
  EXPECT_EQ(cast(c10::kFloat, c10::kFloat), kEveryPending);
  // Rounded terms do not add up to the rounded sum; the greatest stays so.
  EXPECT_EQ(
      cast(c10::kFloat, c10::kBFloat16), "P(min)->P(min) | P(max)->P(max)");
  EXPECT_EQ(cast(c10::kByte, c10::kFloat), "P(min)->P(min) | P(max)->P(max)");
  EXPECT_EQ(cast(c10::kInt, c10::kLong), "");
  EXPECT_EQ(
      cast(c10::kDouble, c10::kComplexDouble),
      "P(sum)->P(sum) | P(avg)->P(avg) | P(product)->P(product)");
  EXPECT_EQ(cast(c10::kFloat, c10::kBool), "");
  EXPECT_EQ(rows("aten::_to_copy", {tensor({})}), kEveryPending);
}

TEST(CopyRows, TheSourceBroadcasts) {
  EXPECT_EQ(
      shard_rows("aten::copy_", {tensor({4, 3}), tensor({3})}),
      "S(0),R->S(0) | S(1),S(0)->S(1)");
  EXPECT_EQ(
      rows("aten::copy_", {tensor({}, c10::kBFloat16), tensor({})}),
      "P(min),P(min)->P(min) | P(max),P(max)->P(max)");
}

TEST(CopyRows, LikesReadNoValues) {
  EXPECT_EQ(
      rows("aten::zeros_like", {tensor({4})}),
      "S(0)->S(0) | P(sum)->R | P(avg)->R | P(product)->R | P(min)->R | "
      "P(max)->R");
}

TEST(CopyRows, NewTensorsOfAnotherShapeAreWhole) {
  EXPECT_EQ(
      shard_rows("aten::new_zeros", {tensor({4})}, {{"size", ints({4})}}),
      "S(0)->S(0)");
  EXPECT_EQ(
      shard_rows(
          "aten::new_full",
          {tensor({4})},
          {{"size", ints({2, 4})}, {"fill_value", 1}}),
      "S(0)->R");
}

TEST(CopyRows, ANumberIsReadOffTheWhole) {
  EXPECT_EQ(rows("aten::_local_scalar_dense", {tensor({})}), "");
}

TEST(CopyRows, LocalArgumentsHoldTheSizesOfTheShard) {
  for (const auto* op :
       {"aten::new_empty", "aten::new_zeros", "aten::new_ones"}) {
    const Call call(op, {tensor({4})}, {{"size", ints({4})}});
    ASSERT_EQ(call.rule().local_arguments.size(), 1) << op;
    EXPECT_EQ(call.rule().local_arguments[0].name, "size");
  }
}

}  // namespace copy_rows_test
}  // namespace tessera::rule_tests
