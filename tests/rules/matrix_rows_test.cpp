#include <gtest/gtest.h>

#include "tests/rules/printed_rows.h"

namespace tessera::rule_tests {
namespace matrix_rows_test {

TEST(MatrixRows, Mm) {
  EXPECT_EQ(
      rows("aten::mm", {tensor({4, 3}), tensor({3, 5})}),
      "S(0),R->S(0) | R,S(1)->S(1) | S(1),S(0)->P(sum) | "
      "P(sum),R->P(sum) | R,P(sum)->P(sum) | "
      "P(avg),R->P(avg) | R,P(avg)->P(avg)");
}

TEST(MatrixRows, MmIntoAGivenTensor) {
  EXPECT_EQ(
      shard_rows("aten::mm.out", {tensor({4, 3}), tensor({3, 5}), tensor({})}),
      "S(0),R,S(0)->S(0) | R,S(1),S(1)->S(1) | S(1),S(0),P(sum)->P(sum)");
}

TEST(MatrixRows, Bmm) {
  EXPECT_EQ(
      shard_rows("aten::bmm", {tensor({2, 4, 3}), tensor({2, 3, 5})}),
      "S(0),S(0)->S(0) | S(1),R->S(1) | R,S(2)->S(2) | S(2),S(1)->P(sum)");
}

TEST(MatrixRows, Vectors) {
  EXPECT_EQ(
      shard_rows("aten::mv", {tensor({4, 3}), tensor({3})}),
      "S(0),R->S(0) | S(1),S(0)->P(sum)");
  EXPECT_EQ(
      shard_rows("aten::dot", {tensor({4}), tensor({4})}), "S(0),S(0)->P(sum)");
  EXPECT_EQ(output_sizes("aten::dot", {tensor({4}), tensor({4})}), "[]");
  EXPECT_THROW(
      output_sizes("aten::dot", {tensor({4}), tensor({3})}), c10::Error);
}

TEST(MatrixRows, TheBiasOfAddmmBroadcasts) {
  const auto left = tensor({4, 3});
  const auto right = tensor({3, 5});
  EXPECT_EQ(
      shard_rows("aten::addmm", {tensor({5}), left, right}),
      "R,S(0),R->S(0) | S(0),R,S(1)->S(1) | P(sum),S(1),S(0)->P(sum)");
  EXPECT_EQ(
      shard_rows("aten::addmm", {tensor({1, 5}), left, right}),
      "R,S(0),R->S(0) | S(1),R,S(1)->S(1) | P(sum),S(1),S(0)->P(sum)");
  EXPECT_EQ(
      shard_rows("aten::addmm", {tensor({4, 5}), left, right}),
      "S(0),S(0),R->S(0) | S(1),R,S(1)->S(1) | P(sum),S(1),S(0)->P(sum)");
  EXPECT_EQ(
      shard_rows("aten::addmm", {tensor({}), left, right}),
      "R,S(0),R->S(0) | R,R,S(1)->S(1) | P(sum),S(1),S(0)->P(sum)");
}

TEST(MatrixRows, ABiasIsPendingWithTheProduct) {
  EXPECT_EQ(
      rows("aten::addmv", {tensor({4}), tensor({4, 3}), tensor({3})}),
      "S(0),S(0),R->S(0) | P(sum),S(1),S(0)->P(sum) | "
      "P(sum),P(sum),R->P(sum) | P(sum),R,P(sum)->P(sum) | "
      "P(avg),P(avg),R->P(avg) | P(avg),R,P(avg)->P(avg)");
}

TEST(MatrixRows, SumsOverABatch) {
  const auto left = tensor({2, 4, 3});
  const auto right = tensor({2, 3, 5});
  EXPECT_EQ(
      shard_rows("aten::addbmm", {tensor({4, 5}), left, right}),
      "S(0),S(1),R->S(0) | S(1),R,S(2)->S(1) | "
      "P(sum),S(0),S(0)->P(sum) | P(sum),S(2),S(1)->P(sum)");
  EXPECT_EQ(
      output_sizes("aten::addbmm", {tensor({4, 5}), left, right}), "[4, 5]");
  EXPECT_EQ(
      shard_rows("aten::baddbmm", {tensor({5}), left, right}),
      "R,S(0),S(0)->S(0) | R,S(1),R->S(1) | S(0),R,S(2)->S(2) | "
      "P(sum),S(2),S(1)->P(sum)");
}

}  // namespace matrix_rows_test
}  // namespace tessera::rule_tests
