#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/rules/printed_rows.h"

namespace tessera::rule_tests {
namespace nn_rows_test {

using ::testing::StartsWith;

TEST(NnRows, Softmax) {
  const auto x = tensor({4, 3});
  EXPECT_EQ(
      rows("aten::_softmax", {x}, {{"dim", -1}, {"half_to_float", false}}),
      "S(0)->S(0)");
  EXPECT_EQ(
      rows(
          "aten::_log_softmax_backward_data",
          {x, x},
          {{"dim", 0}, {"input_dtype", c10::kFloat}}),
      "S(1),S(1)->S(1) | P(sum),R->P(sum) | P(avg),R->P(avg)");
  EXPECT_EQ(
      rows(
          "aten::_softmax_backward_data",
          {x, x},
          {{"dim", 0}, {"input_dtype", c10::kHalf}}),
      "S(1),S(1)->S(1)");
}

TEST(NnRows, LayerNorm) {
  const auto x = tensor({2, 4, 3});
  const Plain shape{{"normalized_shape", ints({3})}, {"eps", 1e-5}};
  EXPECT_EQ(
      rows("aten::native_layer_norm", {x, tensor({3}), absent()}, shape),
      "S(0),R,R->S(0),S(0),S(0) | S(1),R,R->S(1),S(1),S(1)");
  EXPECT_EQ(
      output_sizes("aten::native_layer_norm", {x, absent(), absent()}, shape),
      "[2, 4, 3] [2, 4, 1] [2, 4, 1]");
  const auto moment = tensor({2, 4, 1});
  EXPECT_EQ(
      shard_rows(
          "aten::native_layer_norm_backward",
          {x, x, moment, moment, tensor({3}), absent()},
          {{"normalized_shape", ints({4, 3})}}),
      "S(0),S(0),S(0),S(0),R,R->S(0),P(sum),P(sum)");
}

TEST(NnRows, NllLoss) {
  const auto x = tensor({4, 3});
  const auto target = tensor({4}, c10::kLong);
  const auto forward = [&](int64_t reduction) {
    return rows(
        "aten::nll_loss_forward",
        {x, target, absent()},
        {{"reduction", reduction}, {"ignore_index", -100}});
  };
  EXPECT_EQ(forward(0), "S(0),S(0),R->S(0),R");
  EXPECT_EQ(forward(1), "");
  EXPECT_EQ(forward(2), "S(0),S(0),R->P(sum),P(sum)");
  const auto backward = [&](TensorArg grad, int64_t reduction) {
    return shard_rows(
        "aten::nll_loss_backward",
        {grad, x, target, absent(), tensor({})},
        {{"reduction", reduction}, {"ignore_index", -100}});
  };
  EXPECT_EQ(
      backward(tensor({4}), 0),
      "S(0),S(0),S(0),R,R->S(0) | S(0),S(0),S(0),R,P(sum)->S(0)");
  // The mean divides by total_weight, others do not read it.
  EXPECT_EQ(backward(tensor({}), 1), "R,S(0),S(0),R,R->S(0)");
  EXPECT_EQ(
      backward(tensor({}), 2),
      "R,S(0),S(0),R,R->S(0) | R,S(0),S(0),R,P(sum)->S(0)");
}

TEST(LossRows, OnlyUnreducedLossesAreElementwise) {
  const auto x = tensor({4});
  EXPECT_EQ(
      rows("aten::mse_loss", {x, x}, {{"reduction", 0}}), "S(0),S(0)->S(0)");
  EXPECT_EQ(rows("aten::mse_loss", {x, x}, {{"reduction", 1}}), "");
  EXPECT_EQ(rows("aten::huber_loss", {x, x}, {{"reduction", 2}}), "");
}

TEST(LossRows, Gradients) {
  const auto x = tensor({4});
  EXPECT_EQ(
      rows("aten::mse_loss_backward", {tensor({}), x, x}, {{"reduction", 2}}),
      "R,S(0),S(0)->S(0) | P(sum),R,R->P(sum) | P(avg),R,R->P(avg)");
  EXPECT_EQ(
      rows("aten::mse_loss_backward", {tensor({}), x, x}, {{"reduction", 1}}),
      "");
}

TEST(EmbeddingRows, ByColumnsByRowsAndByBatches) {
  const auto indices = tensor({2, 5}, c10::kLong);
  EXPECT_EQ(
      rows("tessera::lookup", {tensor({10, 4}), indices}),
      "S(1),R->S(2) | S(0),R->MaskP | R,S(0)->S(0) | R,S(1)->S(1) | "
      "P(sum),R->P(sum) | P(avg),R->P(avg) | P(product),R->P(product) | "
      "P(min),R->P(min) | P(max),R->P(max)");
}

TEST(EmbeddingRows, GradientLiesAsTheTable) {
  const auto grad = tensor({2, 5, 4});
  const auto indices = tensor({2, 5}, c10::kLong);
  const auto table = tensor({10, 4});
  const auto with = [](bool scale, bool sparse) {
    return Plain{{"scale_grad_by_freq", scale}, {"sparse", sparse}};
  };
  const char* op = "tessera::lookup_backward";
  // A table that is a pending reduction is whole on every rank.
  EXPECT_THAT(
      rows(op, {grad, indices, table}, with(false, false)),
      StartsWith(
          "S(2),R,S(1)->S(1) | R,R,S(0)->S(0) | S(0),S(0),R->P(sum) | "
          "S(1),S(1),R->P(sum) | P(sum),R,R->P(sum) | P(avg),R,R->P(avg) | "
          "R,R,P(sum)->R | S(0),S(0),P(sum)->P(sum) | "));
  EXPECT_THAT(
      rows(op, {grad, indices, table}, with(true, false)),
      StartsWith(
          "S(2),R,S(1)->S(1) | R,R,S(0)->S(0) | P(sum),R,R->P(sum) | "
          "P(avg),R,R->P(avg) | R,R,P(sum)->R | P(sum),R,P(sum)->P(sum) | "));
  EXPECT_EQ(
      rows(op, {grad, indices, table}, with(false, true)),
      "S(2),R,S(1)->S(1) | R,R,S(0)->S(0)");
}

TEST(EmbeddingRows, DenseGradient) {
  const auto grad = tensor({2, 5, 4});
  const auto indices = tensor({2, 5}, c10::kLong);
  const auto with = [](bool scale) {
    return Plain{
        {"num_weights", 10},
        {"padding_idx", -1},
        {"scale_grad_by_freq", scale}};
  };
  EXPECT_EQ(
      rows("aten::embedding_dense_backward", {grad, indices}, with(false)),
      "S(2),R->S(1) | S(0),S(0)->P(sum) | S(1),S(1)->P(sum) | "
      "P(sum),R->P(sum) | P(avg),R->P(avg)");
  EXPECT_EQ(
      shard_rows("aten::embedding_dense_backward", {grad, indices}, with(true)),
      "S(2),R->S(1)");
  EXPECT_EQ(
      output_sizes(
          "aten::embedding_dense_backward", {grad, indices}, with(false)),
      "[10, 4]");
}

}  // namespace nn_rows_test
}  // namespace tessera::rule_tests
