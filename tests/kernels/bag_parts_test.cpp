// What holds a part of a table apart from a whole one, and what is refused.
#include <cmath>
#include <limits>
#include <string>

#include "bag_cases.h"
#include "testing/throws.h"

namespace tessera::detail {
namespace bag_parts_test {

using tessera::testing::error_of;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

at::Tensor longs(std::vector<int64_t> values) {
  return at::tensor(values, at::kLong);
}

// A part that has no entry of a bag must not beat another's negative values.
TEST(BagParts, AbsentMaximaLose) {
  const at::Tensor table = at::full({4, 3}, -5.0);
  const BagIndices input{longs({0, 1, 3}), longs({0, 2, 3, 3})};
  const std::vector<BagMax> parts = {
      embedding_bag_max_part(table.slice(0, 0, 2), {0, 4}, input),
      embedding_bag_max_part(table.slice(0, 2, 2), {2, 4}, input),
      embedding_bag_max_part(table.slice(0, 2, 4), {2, 4}, input)};
  EXPECT_TRUE(at::equal(parts[1].values, at::full({4, 3}, -kInf)));
  EXPECT_TRUE(parts[1].argmax.eq(-1).all().item<bool>());
  const BagMax all = merge_bag_max(parts);
  EXPECT_TRUE(at::equal(
      all.values.select(1, 0), at::tensor({-5.0F, -5.0F, 0.0F, 0.0F})));
  EXPECT_TRUE(
      at::equal(all.argmax.select(1, 0), at::tensor({0, 2, -1, -1}, at::kInt)));
}

// Another part may have some of the bags only, in its own order. Of equals the
// earlier entry stays, and a NaN stays.
TEST(BagParts, MergesIntoSomeBags) {
  const BagMax all{
      at::tensor({1.0F, 2.0F, 3.0F, 4.0F, 0.0F, 0.0F}).view({3, 2}),
      at::tensor({0, 5, 6, 7, -1, -1}, at::kInt).view({3, 2})};
  const BagMax part{
      at::tensor({-7.0F, -8.0F, 1.0F, static_cast<float>(kNan)}).view({2, 2}),
      at::tensor({9, -1, 2, 3}, at::kInt).view({2, 2})};
  merge_bag_max_(all, longs({2, 0}), part);
  EXPECT_TRUE(at::equal(
      all.argmax, at::tensor({0, 3, 6, 7, 9, -1}, at::kInt).view({3, 2})));
  EXPECT_TRUE(all.values[0][1].isnan().item<bool>());
  EXPECT_TRUE(at::equal(all.values[2], at::tensor({-7.0F, 0.0F})));
}

// The whole table at hand: zeros at once.
TEST(BagParts, WholeTableNeedsNoMerge) {
  const at::Tensor table = at::full({4, 3}, -5.0);
  const BagIndices input{longs({1}), longs({0, 1})};
  const BagMax all =
      embedding_bag_max_part(table, {0, 4}, input, BagEmpty::kZero);
  EXPECT_TRUE(at::equal(all.values.select(1, 0), at::tensor({-5.0F, 0.0F})));
}

// A rate that is 0 in the table's dtype moves nothing: it must not be taken for
// the wish to see the gradient.
TEST(BagParts, AStepTooSmallLeavesTheTable) {
  const BagIndices input{longs({3, 0, 3, 1}), longs({0, 2})};
  for (const auto mode : {BagMode::kSum, BagMode::kMean, BagMode::kMax}) {
    for (const auto dtype : {at::kFloat, at::kHalf}) {
      const at::Tensor table = at::arange(80).view({4, 20}).to(dtype);
      const at::Tensor before = table.clone();
      std::optional<at::Tensor> argmax;
      if (mode == BagMode::kMax) {
        argmax = embedding_bag_max_part(table, {0, 4}, input).argmax;
      }
      embedding_bag_step_(
          table,
          {at::ones({2, 20}, dtype), {0, 4}, input, mode, argmax},
          /*rate=*/1e-60);
      EXPECT_TRUE(at::equal(table, before));
    }
  }
}

// Equal values in several parts: the first entry wins, whoever holds it.
TEST(BagParts, FirstOfEqualsWins) {
  const at::Tensor table = at::ones({4, 20});
  const BagIndices input{longs({3, 0, 3, 1}), longs({0})};
  const std::vector<BagMax> parts = {
      embedding_bag_max_part(table.slice(0, 0, 2), {0, 4}, input),
      embedding_bag_max_part(table.slice(0, 2, 4), {2, 4}, input)};
  EXPECT_TRUE(parts[0].argmax.eq(1).all().item<bool>());
  const BagMax all = merge_bag_max(parts);
  EXPECT_TRUE(all.argmax.eq(0).all().item<bool>());
  EXPECT_TRUE(bag_max_rows(all.argmax, input).eq(3).all().item<bool>());
  // The gradient goes to that entry once, though its row is in the bag twice.
  const at::Tensor grad = embedding_bag_dense_backward(
      {at::ones({1, 20}), {0, 4}, input, BagMode::kMax, all.argmax}, 4);
  EXPECT_TRUE(at::equal(grad.select(1, 0), at::tensor({0.F, 0.F, 0.F, 1.F})));
}

// As ATen: a NaN wins from the first entry, and from nowhere else.
TEST(BagParts, NanAndInfinity) {
  const double values[] = {kNan, kInf, -kInf, 1.0};
  for (int trial = 0; trial < 256; ++trial) {
    at::Tensor table = at::empty({4, 9}, at::kDouble);
    for (int r = 0; r < 4; ++r) {
      table[r].fill_(values[(trial >> (2 * r)) & 3]);
    }
    const BagIndices input{longs({2, 0, 1, 3, 1}), longs({0, 4})};
    std::vector<BagMax> parts;
    std::vector<BagMax> composed;
    for (const int64_t first : {0, 1, 2}) {
      const int64_t end = first == 2 ? 4 : first + 1;
      const at::Tensor rows = table.slice(0, first, end);
      const BagPart part{first, 4};
      parts.push_back(embedding_bag_max_part(rows, part, input));
      composed.push_back(
          BagKernels::composed().max({rows, part, input}, BagEmpty::kLowest));
    }
    const auto [out, unused, sizes, rows] = at::embedding_bag(
        table, input.indices, input.offsets, false, /*mode=*/2);
    for (const auto& each : {parts, composed}) {
      const BagMax all = merge_bag_max(each);
      EXPECT_TRUE(close(all.values, out, at::kDouble)) << trial;
      EXPECT_TRUE(at::equal(bag_max_rows(all.argmax, input), rows)) << trial;
    }
  }
}

// After an exchange a part sees only its own entries, and is told the counts.
TEST(BagParts, MeanWithCountsOfWholeBags) {
  const at::Tensor table = at::arange(12, at::kFloat).view({6, 2});
  const BagIndices whole{longs({0, 5, 1, 4, 4}), longs({0, 3, 3})};
  const at::Tensor counts = bag_counts(whole);
  EXPECT_TRUE(at::equal(counts, longs({3, 0, 2})));
  BagIndices low{longs({0, 1}), longs({0, 2, 2})};
  BagIndices high{longs({5, 4, 4}), longs({0, 1, 1})};
  low.counts = counts;
  high.counts = counts;
  const at::Tensor sum =
      embedding_bag_part(table.slice(0, 0, 3), {0, 6}, low, BagMode::kMean) +
      embedding_bag_part(table.slice(0, 3, 6), {3, 6}, high, BagMode::kMean);
  const auto expected = std::get<0>(at::embedding_bag(
      table, whole.indices, whole.offsets, false, /*mode=*/1));
  EXPECT_TRUE(close(sum, expected, at::kFloat));
  const at::Tensor grad = embedding_bag_dense_backward(
      {at::ones({3, 2}), {3, 6}, high, BagMode::kMean}, 3);
  EXPECT_TRUE(
      close(grad.select(1, 0), at::tensor({0.0, 1.0, 1.0 / 3}), at::kFloat));
}

TEST(BagParts, CountsLeavePaddingOut) {
  BagIndices input{longs({1, 2, 1, 1}), longs({0, 2, 4})};
  input.padding_idx = 1;
  EXPECT_TRUE(at::equal(bag_counts(input), longs({1, 0, 0})));
  EXPECT_TRUE(
      at::equal(BagKernels::composed().counts(input), longs({1, 0, 0})));
}

// Halves are added up in float: a sum that half cannot reach step by step.
TEST(BagParts, HalfKindsAddUpInFloat) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    const at::Tensor table = at::ones({1, 40}, dtype);
    const BagIndices input{at::zeros({4096}, at::kLong), longs({0})};
    EXPECT_TRUE(embedding_bag_part(table, {0, 1}, input, BagMode::kSum)
                    .eq(4096)
                    .all()
                    .item<bool>());
    const at::Tensor grads = embedding_bag_dense_backward(
        {at::ones({1, 40}, dtype), {0, 1}, input, BagMode::kSum}, 1);
    EXPECT_TRUE(grads.eq(4096).all().item<bool>());
  }
}

// Every half there is, read and written.
TEST(BagParts, EveryHalf) {
  const at::Tensor bits = at::arange(65'536, at::kInt).to(at::kShort);
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    const at::Tensor table = bits.view(dtype).view({64, 1024});
    const BagIndices input{
        at::arange(64, at::kLong), at::arange(64, at::kLong)};
    EXPECT_TRUE(close(
        embedding_bag_part(table, {0, 64}, input, BagMode::kSum, at::kFloat),
        table.to(at::kFloat),
        at::kDouble));
    EXPECT_TRUE(close(
        embedding_bag_part(table, {0, 64}, input, BagMode::kSum),
        table,
        at::kDouble));
  }
}

// Nothing need be contiguous.
TEST(BagParts, Strides) {
  const at::Tensor wide = at::randn({7, 40}, at::kDouble);
  const at::Tensor indices = longs({0, 9, 6, 9, 3, 9, 3, 9}).slice(0, 0, 8, 2);
  const at::Tensor offsets = longs({0, 9, 1, 9}).slice(0, 0, 4, 2);
  const at::Tensor grad = at::ones({1, 1}, at::kDouble).expand({2, 20});
  for (const at::Tensor& table :
       {wide.slice(1, 3, 23),
        wide.t().contiguous().t().slice(1, 0, 20),
        wide.slice(1, 0, 40, 2)}) {
    ASSERT_FALSE(table.is_contiguous());
    const BagIndices input{indices, offsets};
    const BagIndices plain{indices.contiguous(), offsets.contiguous()};
    const auto expected = std::get<0>(
        at::embedding_bag(table.contiguous(), plain.indices, plain.offsets));
    EXPECT_TRUE(close(
        embedding_bag_part(table, {0, 7}, input, BagMode::kSum),
        expected,
        at::kDouble));
    const at::Tensor dots =
        embedding_bag_weights_backward(grad, table, {0, 7}, input);
    EXPECT_TRUE(
        close(dots, table.sum(1).index_select(0, plain.indices), at::kDouble));
    EXPECT_TRUE(close(
        embedding_bag_dense_backward({grad, {0, 7}, input, BagMode::kSum}, 7)
            .select(1, 0),
        at::tensor({1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 1.0}, at::kDouble),
        at::kDouble));
  }
}

// Indices behind the last offset belong to no bag and get no gradient.
TEST(BagParts, IndicesBehindTheLastOffset) {
  BagIndices input{longs({0, 1, 99}), longs({0, 2})};
  input.include_last_offset = true;
  const at::Tensor table = at::ones({2, 3});
  EXPECT_TRUE(embedding_bag_part(table, {0, 2}, input, BagMode::kSum)
                  .eq(2)
                  .all()
                  .item<bool>());
  EXPECT_TRUE(at::equal(
      embedding_bag_weights_backward(at::ones({1, 3}), table, {0, 2}, input),
      at::tensor({3.F, 3.F, 0.F})));
}

TEST(BagParts, IndexOutsideTheTable) {
  for (const at::ScalarType index : {at::kInt, at::kLong}) {
    for (const int64_t bad : {12, -1}) {
      for (const int64_t first : {0, 4}) {
        const at::Tensor table = at::ones({10 - first, 4});
        const BagPart part{first, 10};
        const BagIndices input{
            longs({9, bad, 77}).to(index), longs({0, 1}).to(index)};
        const at::Tensor grad = at::ones({2, 4});
        const std::string expected =
            "[embedding_bag] index " + std::to_string(bad) +
            " is outside the table of 10 rows; expected 0 to 9";
        EXPECT_EQ(
            error_of<c10::IndexError>([&] {
              embedding_bag_part(table, part, input, BagMode::kMean);
            }),
            expected);
        EXPECT_EQ(
            error_of<c10::IndexError>(
                [&] { embedding_bag_max_part(table, part, input); }),
            expected);
        EXPECT_EQ(
            error_of<c10::IndexError>([&] {
              embedding_bag_dense_backward(
                  {grad, part, input, BagMode::kSum}, 10 - first);
            }),
            expected);
        EXPECT_EQ(
            error_of<c10::IndexError>([&] {
              embedding_bag_weights_backward(grad, table, part, input);
            }),
            expected);
        EXPECT_EQ(
            error_of<c10::IndexError>([&] {
              BagKernels::composed().pool(
                  {table, part, input}, BagMode::kSum, at::kFloat);
            }),
            expected);
      }
    }
  }
}

// Sums check indices while they follow them, and look ahead at others.
TEST(BagParts, OneIndexOutsideAnywhere) {
  constexpr int64_t kEntries = 20000;  // more than are read at a time
  for (const int64_t width : {0, 1, 3, 16, 64, 200}) {
    const at::Tensor table = at::ones({10, width});
    for (const int64_t place : {int64_t(0), int64_t(8191), kEntries - 1}) {
      for (const int64_t bad :
           {int64_t(10),
            int64_t(-1),
            int64_t(1) << 40,
            std::numeric_limits<int64_t>::max(),
            std::numeric_limits<int64_t>::min()}) {
        at::Tensor indices = at::arange(kEntries).remainder(10);
        indices[place] = bad;
        for (const BagMode mode : {BagMode::kSum, BagMode::kMean}) {
          EXPECT_EQ(
              error_of<c10::IndexError>([&] {
                embedding_bag_part(
                    table,
                    {0, 10},
                    {indices, at::arange(0, kEntries, 20)},
                    mode);
              }),
              "[embedding_bag] index " + std::to_string(bad) +
                  " is outside the table of 10 rows; expected 0 to 9")
              << width << " columns, at " << place;
        }
      }
    }
  }
}

TEST(BagParts, Refused) {
  const at::Tensor table = at::ones({4, 2});
  const auto pool = [&](const BagIndices& input, BagMode mode = BagMode::kSum) {
    return [=] { embedding_bag_part(table, {0, 4}, input, mode); };
  };
  EXPECT_EQ(
      error_of<c10::ValueError>(pool({longs({1}), longs({1})})),
      "[embedding_bag] offsets must start at 0, not 1");
  EXPECT_EQ(
      error_of<c10::ValueError>(pool({longs({1, 2}), longs({0, 3})})),
      "[embedding_bag] offsets must not decrease and not exceed the number of "
      "indices, 2, but 0 is followed by 3");
  EXPECT_EQ(
      error_of<c10::ValueError>(pool({longs({1, 2}), longs({0, 2, 1})})),
      "[embedding_bag] offsets must not decrease and not exceed the number of "
      "indices, 2, but 2 is followed by 1");
  EXPECT_EQ(
      error_of<c10::ValueError>(pool({longs({}), longs({}), true})),
      "[embedding_bag] include_last_offset needs at least 1 offset, the end of "
      "the last bag, but offsets is empty");
  EXPECT_EQ(
      error_of<c10::TypeError>(pool({at::ones({1}), longs({0})})),
      "[embedding_bag] indices must be int32 or int64, not Float");
  EXPECT_EQ(
      error_of<c10::ValueError>(pool({longs({1}).view({1, 1}), longs({0})})),
      "[embedding_bag] indices must have 1 dimension, not 2");
  BagIndices weighted{longs({1}), longs({0})};
  weighted.per_sample_weights = at::ones({1});
  EXPECT_EQ(
      error_of<c10::NotImplementedError>(pool(weighted, BagMode::kMean)),
      "[embedding_bag] per_sample_weights are supported only for mode sum; "
      "leave them out or use sum");
  weighted.per_sample_weights = at::ones({2});
  EXPECT_EQ(
      error_of<c10::ValueError>(pool(weighted)),
      "[embedding_bag] per_sample_weights must have the size of indices, [1], "
      "not [2]");
  weighted.per_sample_weights = at::ones({1}, at::kDouble);
  EXPECT_EQ(
      error_of<c10::TypeError>(pool(weighted)),
      "[embedding_bag] per_sample_weights must have the table's dtype, Float, "
      "not Double");
}

}  // namespace bag_parts_test
}  // namespace tessera::detail
