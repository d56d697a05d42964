// lookup_rows against at::embedding on the whole table.
#include <gtest/gtest.h>

#include <limits>

#include "embedding_parts.h"

namespace tessera::detail {
namespace embedding_forward_test {

class EmbeddingForward : public ::testing::TestWithParam<EmbeddingKernels> {
 protected:
  // Looks `indices` up in every part of `table` and compares each with the rows
  // of the whole table, zeros where the part does not hold them.
  void check_parts(
      const at::Tensor& table, const at::Tensor& indices, int64_t parts) const {
    const int64_t rows = table.size(0);
    const auto bounds = chunk_bounds(rows, parts);
    const at::Tensor whole = at::embedding(table, indices);
    for (int64_t c = 0; c < parts; ++c) {
      const at::Tensor out = GetParam().lookup(
          table.slice(0, bounds[c], bounds[c + 1]), indices, bounds[c], rows);
      const at::Tensor held =
          indices.ge(bounds[c]).logical_and(indices.lt(bounds[c + 1]));
      const at::Tensor expected =
          at::where(held.unsqueeze(-1), whole, at::zeros({}, table.options()));
      EXPECT_TRUE(same(out, expected)) << "part " << c << " of " << parts;
      EXPECT_TRUE(out.is_contiguous());
    }
  }
};

INSTANTIATE_TEST_SUITE_P(
    Kernels,
    EmbeddingForward,
    ::testing::ValuesIn(embedding_kernels()),
    ::testing::PrintToStringParamName());

TEST_P(EmbeddingForward, EveryDtype) {
  const at::Tensor indices = at::randint(11, {3, 5}, at::kLong);
  for (const at::ScalarType dtype :
       {at::kFloat,
        at::kDouble,
        at::kHalf,
        at::kBFloat16,
        at::kByte,
        at::kShort,
        at::kLong,
        at::kBool,
        at::kComplexFloat,
        at::kComplexDouble}) {
    SCOPED_TRACE(dtype);
    check_parts(whole_numbers({11, 7}, dtype), indices, 4);
  }
}

TEST_P(EmbeddingForward, IndicesOfEveryShapeAndDtype) {
  const at::Tensor table = at::randn({10, 6});
  for (const at::ScalarType dtype : {at::kLong, at::kInt}) {
    for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
             {}, {4}, {2, 3}, {2, 1, 3}, {1, 2, 2, 2}, {2, 2, 1, 3, 2}}) {
      SCOPED_TRACE(sizes.size());
      check_parts(table, at::randint(10, sizes, dtype), 4);
    }
  }
}

TEST_P(EmbeddingForward, MorePartsThanRows) {
  check_parts(at::randn({2, 3}), at::tensor({0, 1, 1, 0}), 4);
}

TEST_P(EmbeddingForward, NothingToLookUp) {
  const at::Tensor none = at::empty({3, 0, 2}, at::kLong);
  EXPECT_TRUE(same(
      GetParam().lookup(at::randn({4, 5}), none, 0, 4),
      at::zeros({3, 0, 2, 5})));
  EXPECT_TRUE(same(
      GetParam().lookup(at::randn({0, 5}), none, 0, 0),
      at::zeros({3, 0, 2, 5})));
}

TEST_P(EmbeddingForward, NoColumns) {
  const at::Tensor out =
      GetParam().lookup(at::randn({4, 0}), at::tensor({1, 7}), 0, 8);
  EXPECT_EQ(out.sizes(), at::IntArrayRef({2, 0}));
  EXPECT_THROW(
      GetParam().lookup(at::randn({4, 0}), at::tensor({1, 8}), 0, 8),
      c10::IndexError);
}

TEST_P(EmbeddingForward, Strided) {
  const at::Tensor indices = at::randint(12, {6, 8}, at::kLong);
  const at::Tensor wide = at::randn({24, 10});
  const at::Tensor views[] = {
      at::randn({5, 12}).t(),
      wide.slice(0, 0, 24, 2),
      wide.slice(0, 3, 15).slice(1, 2, 9),
      wide.slice(0, 3, 15).slice(1, 0, 10, 3),
      at::randn({1, 5}).expand({12, 5}),
      at::randn({12, 1}).expand({12, 5})};
  for (const at::Tensor& table : views) {
    check_parts(table, indices, 3);
    check_parts(table, indices.t(), 3);
    check_parts(table, indices.slice(1, 0, 8, 3), 3);
    check_parts(table, indices.select(1, 2).unsqueeze(1).expand({6, 4}), 3);
  }
}

// What is masked is zero, also where the row that stands in for it is not
// finite.
TEST_P(EmbeddingForward, ZerosBesideNotFiniteRows) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor out =
      GetParam().lookup(at::full({2, 3}, nan), at::tensor({0, 5, 3}), 6, 8);
  EXPECT_TRUE(same(out, at::zeros({3, 3})));
}

TEST_P(EmbeddingForward, IndexOutsideTheTable) {
  const auto message = [&](const at::Tensor& indices, int64_t held) {
    return message_of<c10::IndexError>(
        [&] { GetParam().lookup(at::randn({held, 4}), indices, 2, 10); });
  };
  EXPECT_EQ(
      message(at::tensor({3, 12, -1}), 4),
      "[embedding] index 12 is outside the table of 10 rows; expected 0 to 9");
  EXPECT_EQ(
      message(at::tensor({3, -1, 12}, at::kInt), 4),
      "[embedding] index -1 is outside the table of 10 rows; expected 0 to 9");
  // A rank without rows finds it too.
  EXPECT_EQ(
      message(at::tensor({0, 9, 10, 1}).view({2, 2}), 0),
      "[embedding] index 10 is outside the table of 10 rows; expected 0 to 9");
  EXPECT_EQ(
      message_of<c10::IndexError>(
          [&] { GetParam().lookup(at::randn({0, 4}), at::tensor({0}), 0, 0); }),
      "[embedding] index 0 is outside the table of 0 rows; no index is valid");
  const int64_t far = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(
      message(at::tensor({far}), 4),
      "[embedding] index -9223372036854775808 is outside the table of 10 rows; "
      "expected 0 to 9");
}

TEST_P(EmbeddingForward, RandomTrials) {
  for (int trial = 0; trial < 500; ++trial) {
    const auto random = [](int64_t below) {
      return at::randint(below, {}, at::kLong).item<int64_t>();
    };
    const int64_t rows = 1 + random(40);
    SCOPED_TRACE(trial);
    check_parts(
        at::randn({rows, random(20)}),
        at::randint(
            rows,
            {random(5), random(30)},
            trial % 2 == 0 ? at::kLong : at::kInt),
        1 + random(6));
  }
}

TEST(EmbeddingForwardArguments, Refused) {
  const at::Tensor weight = at::randn({4, 3});
  EXPECT_EQ(
      message_of<c10::TypeError>(
          [&] { lookup_rows(weight, at::zeros({2}), 0, 4); }),
      "[embedding] expected int64 or int32 indices but got Float; convert them "
      "with to(torch::kLong)");
  const at::Tensor indices = at::tensor({1});
  EXPECT_EQ(
      message_of<c10::ValueError>([&] { lookup_rows(weight, indices, 2, 5); }),
      "[embedding] expected a part of [0, 5) but got 4 places from 2 on");
  EXPECT_EQ(
      message_of<c10::ValueError>(
          [&] { lookup_rows(at::zeros({4}), indices, 0, 4); }),
      "[embedding] expected a weight of 2 dimensions but got 1");
}

TEST(EmbeddingForwardArguments, LazyConjugation) {
  const at::Tensor weight = at::randn({4, 3}, at::kComplexFloat);
  const at::Tensor indices = at::tensor({2, 0});
  EXPECT_TRUE(same(
      lookup_rows(weight.conj(), indices, 0, 4),
      weight.conj_physical().index_select(0, indices)));
  const at::Tensor imaginary = at::imag(weight.conj());
  ASSERT_TRUE(imaginary.is_neg());
  EXPECT_TRUE(same(
      lookup_rows(imaginary, indices, 0, 4),
      imaginary.resolve_neg().index_select(0, indices)));
}

TEST(EmbeddingForwardArguments, MetaTensorsHaveShapesAlone) {
  const at::Tensor weight = at::empty({4, 3}, at::kMeta);
  const at::Tensor indices =
      at::empty({5, 2}, at::device(at::kMeta).dtype(at::kLong));
  EXPECT_EQ(
      lookup_rows(weight, indices, 0, 8).sizes(), at::IntArrayRef({5, 2, 3}));
  EXPECT_EQ(
      lookup_rows_backward(
          at::empty({5, 2, 3}, at::kMeta), {indices, 4, 3, 8}, -1, false)
          .sizes(),
      at::IntArrayRef({3, 3}));
}

TEST(EmbeddingForwardThreads, SameRowsAndSameFirstBadIndex) {
  const at::Tensor weight = at::randn({500, 64});
  at::Tensor indices = at::randint(1'000, {20'000}, at::kLong);
  const auto lookup = [&](int threads) {
    const ThreadCount count(threads);
    return lookup_rows(weight, indices, 250, 1'000);
  };
  EXPECT_TRUE(same(lookup(4), lookup(1)));
  for (const int64_t place : {19'999, 15'000, 10'001, 3}) {
    indices[place] = 1'000 + place;
    const std::string first = "index " + std::to_string(1'000 + place) + " ";
    EXPECT_NE(
        message_of<c10::IndexError>([&] { lookup(4); }).find(first),
        std::string::npos);
  }
}

}  // namespace embedding_forward_test
}  // namespace tessera::detail
