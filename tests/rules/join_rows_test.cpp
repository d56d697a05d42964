#include <gtest/gtest.h>

#include "tests/rules/printed_rows.h"

namespace tessera::rule_tests {
namespace join_rows_test {

TEST(JoinRows, Cat) {
  EXPECT_EQ(
      shard_rows("aten::cat", {tensor({4, 3}), tensor({2, 3})}),
      "S(1),S(1)->S(1)");
  EXPECT_EQ(
      shard_rows("aten::cat", {tensor({4, 3}), tensor({4, 2})}, {{"dim", -1}}),
      "S(0),S(0)->S(0)");
  EXPECT_EQ(
      rows("aten::cat", {tensor({4}), tensor({2})}),
      "P(sum),P(sum)->P(sum) | P(avg),P(avg)->P(avg) | "
      "P(product),P(product)->P(product) | P(min),P(min)->P(min) | "
      "P(max),P(max)->P(max)");
  EXPECT_EQ(rows("aten::cat", {tensor({4}), tensor({2}, c10::kDouble)}), "");
}

TEST(JoinRows, CatSkipsTensorsOfShapeZero) {
  EXPECT_EQ(
      shard_rows("aten::cat", {tensor({0}), tensor({4, 3})}), "R,S(1)->S(1)");
  EXPECT_EQ(rows("aten::cat", {tensor({0}), tensor({0})}), "");
}

TEST(JoinRows, Stack) {
  EXPECT_EQ(
      shard_rows("aten::stack", {tensor({4, 3}), tensor({4, 3})}, {{"dim", 1}}),
      "S(0),S(0)->S(0) | S(1),S(1)->S(2)");
  EXPECT_EQ(
      shard_rows("aten::stack", {tensor({4})}, {{"dim", -1}}), "S(0)->S(0)");
}

TEST(JoinRows, Repeat) {
  EXPECT_EQ(
      shard_rows(
          "aten::repeat", {tensor({4, 3})}, {{"repeats", ints({2, 1, 2})}}),
      "S(0)->S(1)");
}

TEST(JoinRows, FlipAndRoll) {
  const auto x = tensor({4, 3});
  EXPECT_EQ(
      shard_rows("aten::flip", {x}, {{"dims", ints({-1})}}), "S(0)->S(0)");
  EXPECT_EQ(
      shard_rows("aten::flip", {x}, {{"dims", ints({})}}),
      "S(0)->S(0) | S(1)->S(1)");
  EXPECT_EQ(
      shard_rows(
          "aten::roll", {x}, {{"shifts", ints({1})}, {"dims", ints({-2})}}),
      "S(1)->S(1)");
  EXPECT_EQ(shard_rows("aten::roll", {x}, {{"shifts", ints({1})}}), "");
}

TEST(JoinRows, PaddedDimensionsStayWhole) {
  const auto x = tensor({2, 4, 3});
  EXPECT_EQ(
      rows("aten::constant_pad_nd", {x}, {{"pad", ints({0, 0, 1, 0})}}),
      "S(0)->S(0) | S(2)->S(2) | P(sum)->P(sum) | P(avg)->P(avg)");
  EXPECT_EQ(
      rows(
          "aten::constant_pad_nd",
          {tensor({2})},
          {{"pad", ints({1, 1})}, {"value", 1}}),
      "");
}

TEST(JoinRows, TrianglesOfABatch) {
  EXPECT_EQ(shard_rows("aten::tril", {tensor({2, 4, 3})}), "S(0)->S(0)");
  EXPECT_EQ(shard_rows("aten::triu_", {tensor({4, 3})}), "");
}

TEST(IndexRows, IndexSelect) {
  const auto index = tensor({5}, c10::kLong);
  EXPECT_EQ(
      shard_rows("aten::index_select", {tensor({4, 3}), index}, {{"dim", -1}}),
      "S(0),R->S(0) | R,S(0)->S(1)");
  EXPECT_EQ(
      output_sizes("aten::index_select", {tensor({4, 3}), index}, {{"dim", 1}}),
      "[4, 5]");
  const auto one = tensor({}, c10::kLong);
  EXPECT_EQ(
      shard_rows("aten::index_select", {tensor({4}), one}, {{"dim", 0}}), "");
  EXPECT_EQ(
      output_sizes("aten::index_select", {tensor({4}), one}, {{"dim", 0}}),
      "[1]");
}

TEST(IndexRows, IndexAdd) {
  EXPECT_EQ(
      rows(
          "aten::index_add_",
          {tensor({4, 3}), tensor({2}, c10::kLong), tensor({2, 3})},
          {{"dim", 0}}),
      "P(sum),S(0),S(0)->P(sum) | S(1),R,S(1)->S(1) | "
      "P(sum),R,P(sum)->P(sum) | P(avg),R,P(avg)->P(avg)");
}

TEST(IndexRows, GatherWorksSliceBySlice) {
  const auto x = tensor({4, 3});
  EXPECT_EQ(
      shard_rows(
          "tessera::gather_part",
          {x, tensor({4, 2}, c10::kLong)},
          {{"dim", 1}}),
      "S(0),S(0)->S(0) | R,S(1)->S(1) | S(1),R->MaskP");
  // A shorter index is cut elsewhere than what it points into.
  EXPECT_EQ(
      shard_rows(
          "tessera::gather_part",
          {x, tensor({3, 2}, c10::kLong)},
          {{"dim", 1}}),
      "R,S(1)->S(1) | S(1),R->MaskP");
}

TEST(IndexRows, ScatterAddsFromSeveralRanks) {
  const auto index = tensor({4, 2}, c10::kLong);
  EXPECT_EQ(
      rows(
          "aten::scatter_add",
          {tensor({4, 3}), index, tensor({4, 2})},
          {{"dim", 1}}),
      "S(0),S(0),S(0)->S(0) | P(sum),S(1),S(1)->P(sum) | "
      "P(sum),R,P(sum)->P(sum) | P(avg),R,P(avg)->P(avg)");
  EXPECT_EQ(
      rows(
          "aten::scatter.src",
          {tensor({4, 3}), index, tensor({4, 2})},
          {{"dim", 1}}),
      "S(0),S(0),S(0)->S(0)");
}

}  // namespace join_rows_test
}  // namespace tessera::rule_tests
