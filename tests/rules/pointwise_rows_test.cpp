#include <gtest/gtest.h>

#include "tests/rules/printed_rows.h"

namespace tessera::rule_tests {
namespace pointwise_rows_test {

TEST(PointwiseRows, Unary) {
  EXPECT_EQ(rows("aten::tanh", {tensor({4, 3})}), "S(0)->S(0) | S(1)->S(1)");
  EXPECT_EQ(rows("aten::exp", {tensor({})}), "");
}

TEST(PointwiseRows, EveryResultIsPlacedAlike) {
  EXPECT_EQ(rows("aten::frexp.Tensor", {tensor({4})}), "S(0)->S(0),S(0)");
}

TEST(PointwiseRows, BroadcastDimensionsAreReplicated) {
  EXPECT_EQ(
      rows("aten::atan2", {tensor({4, 3}), tensor({3})}),
      "S(0),R->S(0) | S(1),S(0)->S(1)");
  EXPECT_EQ(
      rows("aten::atan2", {tensor({4, 1}), tensor({1, 3})}),
      "S(0),R->S(0) | R,S(1)->S(1)");
  EXPECT_EQ(
      rows("aten::atan2", {tensor({}), tensor({2, 1})}),
      "R,S(0)->S(0) | R,S(1)->S(1)");
}

TEST(PointwiseRows, OutTensorsLieAsTheResult) {
  EXPECT_EQ(
      rows("aten::atan2.out", {tensor({3}), tensor({2, 3}), tensor({2, 3})}),
      "R,S(0),S(0)->S(0) | S(0),S(1),S(1)->S(1)");
}

TEST(PointwiseRows, AbsentTensorsAreReplicated) {
  EXPECT_EQ(
      rows("aten::clamp.Tensor", {tensor({4}), absent(), tensor({4})}),
      "S(0),R,S(0)->S(0)");
}

TEST(PointwiseRows, OpsWithoutTheTag) {
  EXPECT_EQ(
      rows("aten::floor_divide", {tensor({4}), tensor({})}), "S(0),R->S(0)");
  EXPECT_EQ(
      rows("aten::fill_.Scalar", {tensor({4})}, {{"value", 1}}), "S(0)->S(0)");
  EXPECT_EQ(
      rows(
          "aten::masked_fill_.Scalar",
          {tensor({4}), tensor({4}, c10::kBool)},
          {{"value", 1}}),
      "S(0),S(0)->S(0)");
  // Zeros are linear.
  EXPECT_EQ(
      rows(
          "aten::masked_fill_.Scalar",
          {tensor({4}), tensor({4}, c10::kBool)},
          {{"value", 0}}),
      "S(0),S(0)->S(0) | P(sum),R->P(sum) | P(avg),R->P(avg)");
}

TEST(PointwiseRows, EqualNeedsWholeTensors) {
  EXPECT_EQ(rows("aten::equal", {tensor({4}), tensor({4})}), "");
}

TEST(PointwiseRows, NumbersStayOutOfTheKey) {
  const Call call("aten::mul.Scalar", {tensor({4})}, {{"other", 2.0}});
  EXPECT_TRUE(call.rule().ignores_numbers);
  EXPECT_TRUE(call.rule().elementwise);
}

TEST(LinearRows, Unary) {
  const std::string all = "S(0)->S(0) | P(sum)->P(sum) | P(avg)->P(avg)";
  EXPECT_EQ(rows("aten::neg_", {tensor({4})}), all);
  EXPECT_EQ(rows("aten::mul.Scalar", {tensor({4})}, {{"other", 2}}), all);
  EXPECT_EQ(rows("aten::div_.Scalar", {tensor({4})}, {{"other", 2}}), all);
  EXPECT_EQ(
      rows("aten::conj_physical.out", {tensor({4}), tensor({4})}),
      "S(0),S(0)->S(0) | P(sum),P(sum)->P(sum) | P(avg),P(avg)->P(avg)");
}

TEST(LinearRows, TheNegativeOfTheLargestIsTheSmallest) {
  EXPECT_EQ(
      rows("aten::neg", {tensor({})}),
      "P(sum)->P(sum) | P(avg)->P(avg) | P(max)->P(min) | P(min)->P(max)");
  EXPECT_EQ(
      rows("aten::neg.out", {tensor({}), tensor({})}),
      "P(sum),P(sum)->P(sum) | P(avg),P(avg)->P(avg) | P(max),P(min)->P(min) | "
      "P(min),P(max)->P(max)");
  // -(-128) is -128, and of bytes -1 is 255.
  const std::string sums = "P(sum)->P(sum) | P(avg)->P(avg)";
  EXPECT_EQ(rows("aten::neg", {tensor({}, c10::kByte)}), sums);
  EXPECT_EQ(rows("aten::neg", {tensor({}, c10::kChar)}), sums);
}

TEST(LinearRows, FunctionsThatNeverDecrease) {
  const std::string all = "S(0)->S(0) | P(max)->P(max) | P(min)->P(min)";
  EXPECT_EQ(rows("aten::relu", {tensor({4})}), all);
  EXPECT_EQ(rows("aten::floor_", {tensor({4})}), all);
}

TEST(LinearRows, SumsOfTwo) {
  const std::string all =
      "S(0),S(0)->S(0) | P(sum),P(sum)->P(sum) | P(avg),P(avg)->P(avg)";
  EXPECT_EQ(rows("aten::add.Tensor", {tensor({4}), tensor({4})}), all);
  EXPECT_EQ(rows("aten::sub_.Tensor", {tensor({4}), tensor({4})}), all);
  EXPECT_EQ(
      rows("aten::lerp.Scalar", {tensor({4}), tensor({4})}, {{"weight", 0.5}}),
      all);
}

TEST(LinearRows, ANumberIsAddedOnce) {
  EXPECT_EQ(
      rows("aten::add.Scalar", {tensor({4})}, {{"other", 1}}), "S(0)->S(0)");
}

TEST(LinearRows, Products) {
  EXPECT_EQ(
      rows("aten::mul.Tensor", {tensor({}), tensor({})}),
      "P(sum),R->P(sum) | P(avg),R->P(avg) | R,P(sum)->P(sum) | "
      "R,P(avg)->P(avg)");
  // What is written must have the placements of the result.
  EXPECT_EQ(
      rows("aten::mul_.Tensor", {tensor({}), tensor({})}),
      "P(sum),R->P(sum) | P(avg),R->P(avg)");
  EXPECT_EQ(
      rows("aten::div.Tensor", {tensor({}), tensor({})}),
      "P(sum),R->P(sum) | P(avg),R->P(avg)");
  // 3 / 0 is infinite, where 5 / 0 - 2 / 0 is not a number.
  EXPECT_EQ(
      rows("aten::div.Tensor", {tensor({2}), tensor({2})}), "S(0),S(0)->S(0)");
  EXPECT_EQ(
      rows(
          "aten::div.Tensor_mode",
          {tensor({}), tensor({})},
          {{"rounding_mode", "floor"}}),
      "");
}

TEST(LinearRows, ThreeOperands) {
  EXPECT_EQ(
      rows(
          "aten::where.self", {tensor({}, c10::kBool), tensor({}), tensor({})}),
      "R,P(sum),P(sum)->P(sum) | R,P(avg),P(avg)->P(avg)");
  EXPECT_EQ(
      rows("aten::addcdiv_", {tensor({}), tensor({}), tensor({})}),
      "P(sum),P(sum),R->P(sum) | P(avg),P(avg),R->P(avg)");
}

TEST(LinearRows, IntegersAreAddedInTheirOwnDtype) {
  const auto bytes = tensor({}, c10::kByte);
  const auto longs = tensor({}, c10::kLong);
  EXPECT_EQ(
      rows("aten::add.Tensor", {bytes, bytes}),
      "P(sum),P(sum)->P(sum) | P(avg),P(avg)->P(avg)");
  // 200 + 100 wraps around as a byte, but not as a long or a float.
  EXPECT_EQ(rows("aten::add.Tensor", {bytes, longs}), "");
  EXPECT_EQ(rows("aten::div.Tensor", {bytes, bytes}), "");
  EXPECT_EQ(rows("aten::mul.Scalar", {bytes}, {{"other", 2.5}}), "");
  const auto bools = tensor({}, c10::kBool);
  EXPECT_EQ(
      rows("aten::mul.Tensor", {bools, tensor({})}),
      "R,P(sum)->P(sum) | R,P(avg)->P(avg)");
}

TEST(LinearRows, NothingIsRoundedBeforeItIsAdded) {
  const auto half = tensor({}, c10::kBFloat16);
  EXPECT_EQ(rows("aten::add_.Tensor", {half, tensor({})}), "");
  EXPECT_EQ(
      rows("aten::add_.Tensor", {tensor({}), half}),
      "P(sum),P(sum)->P(sum) | P(avg),P(avg)->P(avg)");
  EXPECT_EQ(rows("aten::mul.out", {tensor({}), tensor({}), half}), "");
}

TEST(LinearRows, Extrema) {
  EXPECT_EQ(
      rows("aten::maximum", {tensor({2}), tensor({})}),
      "S(0),R->S(0) | P(max),P(max)->P(max)");
  EXPECT_EQ(
      rows("aten::minimum", {tensor({}), tensor({})}), "P(min),P(min)->P(min)");
}

TEST(LinearRows, ZeroReplacesWhateverIsPending) {
  EXPECT_EQ(
      rows("aten::zero_", {tensor({2})}),
      "S(0)->S(0) | P(sum)->P(sum) | P(avg)->P(avg) | "
      "P(product)->P(product) | P(min)->P(min) | P(max)->P(max)");
}

TEST(LinearRows, GradientsEnterLinearly) {
  EXPECT_EQ(
      rows(
          "aten::threshold_backward",
          {tensor({2}), tensor({2})},
          {{"threshold", 0}}),
      "S(0),S(0)->S(0) | P(sum),R->P(sum) | P(avg),R->P(avg)");
}

}  // namespace pointwise_rows_test
}  // namespace tessera::rule_tests
