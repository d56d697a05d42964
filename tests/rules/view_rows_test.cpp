#include <gtest/gtest.h>

#include "rules/view_groups.h"
#include "tests/rules/printed_rows.h"

namespace tessera::rule_tests {
namespace view_rows_test {

std::string view(Sizes from, std::initializer_list<int64_t> to) {
  return shard_rows(
      "aten::view", {tensor(std::move(from))}, {{"size", ints(to)}});
}

constexpr auto kEveryPending =
    "P(sum)->P(sum) | P(avg)->P(avg) | P(product)->P(product) | "
    "P(min)->P(min) | P(max)->P(max)";

TEST(ViewRows, MergedDimensionsAreCutAtTheFirst) {
  EXPECT_EQ(view({6, 4}, {24}), "S(0)->S(0) even");
  EXPECT_EQ(view({6, 4}, {-1}), "S(0)->S(0) even");
  EXPECT_EQ(view({2, 3, 4}, {6, 4}), "S(0)->S(0) even | S(2)->S(1)");
}

TEST(ViewRows, SplitDimensionsAreCutAtTheFirst) {
  EXPECT_EQ(view({24}, {6, 4}), "S(0)->S(0) even");
  EXPECT_EQ(view({5, 6}, {5, 2, 3}), "S(0)->S(0) | S(1)->S(1) even");
  EXPECT_EQ(view({4, 6}, {8, 3}), "S(0)->S(0) even");
}

TEST(ViewRows, DimensionsOfSizeOneComeAndGo) {
  EXPECT_EQ(view({1, 6}, {6}), "S(1)->S(0)");
  EXPECT_EQ(view({6}, {6, 1}), "S(0)->S(0)");
  EXPECT_EQ(view({1}, {}), "");
}

TEST(ViewRows, OneRankHasAllOfADimensionOfSizeOne) {
  EXPECT_EQ(view({1, 6}, {1, 6}), "S(1)->S(1) | S(0)->S(0)");
  EXPECT_EQ(view({2, 1, 3}, {1, 2, 3}), "S(0)->S(1) | S(2)->S(2) | S(1)->S(0)");
  // In its own place rather than in the first.
  EXPECT_EQ(
      view({1, 1, 2}, {1, 1, 2, 1}), "S(2)->S(2) | S(0)->S(0) | S(1)->S(1)");
  EXPECT_EQ(view({1, 6}, {2, 3, 1}), "S(1)->S(0) even | S(0)->S(2)");
}

TEST(ViewRows, EmptyTensors) {
  EXPECT_EQ(view({0, 3}, {0, 1, 3}), "S(0)->S(0) | S(1)->S(2)");
  EXPECT_EQ(view({0, 3}, {3, 0}), "");
}

TEST(ViewRows, EveryReductionStaysPending) {
  EXPECT_EQ(
      rows("aten::view", {tensor({})}, {{"size", ints({1})}}), kEveryPending);
  EXPECT_EQ(rows("aten::t", {tensor({})}), kEveryPending);
}

TEST(ViewRows, WrongSizesRaise) {
  EXPECT_THROW(view({6, 4}, {5, -1}), c10::Error);
  EXPECT_THROW(view({6, 4}, {23}), c10::Error);
  EXPECT_THROW(view({6, 4}, {-1, -1}), c10::Error);
}

TEST(ViewRows, AnotherDtype) {
  const auto x = tensor({4, 6});
  EXPECT_EQ(
      rows("aten::view.dtype", {x}, {{"dtype", c10::kInt}}),
      "S(0)->S(0) | S(1)->S(1)");
  EXPECT_EQ(
      rows("aten::view.dtype", {x}, {{"dtype", c10::kDouble}}), "S(0)->S(0)");
}

TEST(ViewRows, Expand) {
  EXPECT_EQ(
      shard_rows(
          "aten::expand", {tensor({4, 1})}, {{"size", ints({2, -1, 3})}}),
      "S(0)->S(1)");
}

TEST(ViewRows, MovedDimensions) {
  const auto x = tensor({2, 3, 4});
  EXPECT_EQ(
      shard_rows("aten::transpose.int", {x}, {{"dim0", 0}, {"dim1", -1}}),
      "S(0)->S(2) | S(1)->S(1) | S(2)->S(0)");
  EXPECT_EQ(
      shard_rows("aten::permute", {x}, {{"dims", ints({2, 0, 1})}}),
      "S(0)->S(1) | S(1)->S(2) | S(2)->S(0)");
  EXPECT_EQ(shard_rows("aten::t", {tensor({4, 3})}), "S(0)->S(1) | S(1)->S(0)");
  EXPECT_EQ(shard_rows("aten::t", {tensor({4})}), "S(0)->S(0)");
  EXPECT_EQ(
      shard_rows("aten::unsqueeze", {tensor({4, 3})}, {{"dim", -2}}),
      "S(0)->S(0) | S(1)->S(2)");
}

TEST(ViewRows, OnlyDimensionsOfSizeOneAreSqueezed) {
  EXPECT_EQ(
      shard_rows(
          "aten::squeeze.dims",
          {tensor({1, 4, 1, 3})},
          {{"dim", ints({0, 1, -2})}}),
      "S(1)->S(0) | S(3)->S(1)");
  EXPECT_EQ(
      shard_rows("aten::squeeze.dims", {tensor({1})}, {{"dim", ints({})}}),
      "S(0)->S(0)");
}

TEST(ViewRows, ComplexNumbersAreAddedByParts) {
  EXPECT_EQ(
      rows("aten::view_as_complex", {tensor({4, 2})}),
      "S(0)->S(0) | P(sum)->P(sum) | P(avg)->P(avg)");
  EXPECT_EQ(
      rows("aten::_conj", {tensor({}, c10::kComplexFloat)}),
      "P(sum)->P(sum) | P(avg)->P(avg)");
}

TEST(SliceRows, ASliceOfAllIsNoCut) {
  const auto x = tensor({4, 3});
  EXPECT_EQ(
      shard_rows("aten::slice.Tensor", {x}, {{"dim", 0}, {"end", 2}}),
      "S(1)->S(1)");
  EXPECT_EQ(
      shard_rows("aten::slice.Tensor", {x}, {{"dim", 0}, {"step", 2}}),
      "S(1)->S(1)");
  EXPECT_EQ(
      shard_rows(
          "aten::slice.Tensor",
          {x},
          {{"dim", -2}, {"start", -4}, {"end", INT64_MAX}}),
      "S(0)->S(0) | S(1)->S(1)");
  EXPECT_EQ(
      shard_rows("aten::slice.Tensor", {x}, {{"dim", 0}, {"end", -1}}),
      "S(1)->S(1)");
}

TEST(SliceRows, DroppedDimensions) {
  const auto x = tensor({2, 3, 4});
  EXPECT_EQ(
      shard_rows("aten::select.int", {x}, {{"dim", 1}, {"index", 0}}),
      "S(0)->S(0) | S(2)->S(1)");
  EXPECT_EQ(
      shard_rows("aten::unbind.int", {x}, {{"dim", -1}}),
      "S(0)->S(0) | S(1)->S(1)");
  EXPECT_EQ(
      shard_rows("aten::split.Tensor", {x}, {{"split_size", 1}, {"dim", 0}}),
      "S(1)->S(1) | S(2)->S(2)");
  EXPECT_EQ(
      shard_rows("aten::diagonal", {x}, {{"dim1", 0}, {"dim2", 2}}),
      "S(1)->S(0)");
}

TEST(SliceRows, GradientsGoBackToTheWholeShape) {
  const Plain slice{
      {"input_sizes", ints({4, 3})},
      {"dim", 0},
      {"start", 0},
      {"end", 2},
      {"step", 1}};
  EXPECT_EQ(
      rows("aten::slice_backward", {tensor({2, 3})}, slice),
      "S(1)->S(1) | P(sum)->P(sum) | P(avg)->P(avg)");
  EXPECT_EQ(
      output_sizes("aten::slice_backward", {tensor({2, 3})}, slice), "[4, 3]");
  EXPECT_EQ(
      shard_rows(
          "aten::select_backward",
          {tensor({2, 4})},
          {{"input_sizes", ints({2, 3, 4})}, {"dim", 1}, {"index", 0}}),
      "S(0)->S(0) | S(1)->S(2)");
  EXPECT_EQ(
      shard_rows(
          "aten::diagonal_backward",
          {tensor({3, 2})},
          {{"input_sizes", ints({2, 3, 4})},
           {"offset", 0},
           {"dim1", 0},
           {"dim2", 2}}),
      "S(0)->S(1)");
}

TEST(ViewGroups, TheFinest) {
  const auto groups =
      detail::view_groups(Sizes{2, 3, 4, 5}, Sizes{6, 2, 1, 2, 5});
  ASSERT_EQ(groups.size(), 3);
  EXPECT_EQ(groups[0].in, (Sizes{0, 1}));
  EXPECT_EQ(groups[0].out, (Sizes{0}));
  EXPECT_EQ(groups[1].in, (Sizes{2}));
  EXPECT_EQ(groups[1].out, (Sizes{1, 3}));
  EXPECT_TRUE(groups[2].unchanged());
}

}  // namespace view_rows_test
}  // namespace tessera::rule_tests
