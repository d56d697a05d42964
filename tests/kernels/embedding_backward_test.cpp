// The gradients of lookup_rows, dense and sparse, against
// at::embedding_dense_backward on the whole table.
#include <gtest/gtest.h>

#include "embedding_parts.h"

namespace tessera::detail {
namespace embedding_backward_test {

class EmbeddingBackward : public ::testing::TestWithParam<EmbeddingKernels> {
 protected:
  // Gradients of whole numbers, whose sums are the same in any order: every
  // part must be a slice of the whole table's, dense and sparse.
  void check_parts(
      const at::Tensor& grad,
      const at::Tensor& indices,
      int64_t rows,
      int64_t parts,
      int64_t padding_idx) const {
    const auto bounds = chunk_bounds(rows, parts);
    const at::Tensor whole =
        at::embedding_dense_backward(
            at::real(grad.to(at::kComplexDouble)).contiguous(),
            indices,
            rows,
            padding_idx,
            false)
            .to(grad.scalar_type());
    for (int64_t c = 0; c < parts; ++c) {
      SCOPED_TRACE(c);
      const int64_t held = bounds[c + 1] - bounds[c];
      const at::Tensor expected = whole.slice(0, bounds[c], bounds[c + 1]);
      EXPECT_TRUE(same(
          GetParam().backward(
              grad, {indices, bounds[c], held, rows}, padding_idx, false),
          expected));
      const at::Tensor sparse = GetParam().sparse_backward(
          grad, {indices, bounds[c], held, rows}, padding_idx);
      ASSERT_TRUE(sparse.is_sparse());
      EXPECT_TRUE(sparse.is_coalesced());
      EXPECT_TRUE(same(sparse.to_dense(), expected));
      check_touched(sparse, indices, bounds[c], held, padding_idx);
    }
  }

  // The rows stored are those that are named, each once, ascending.
  static void check_touched(
      const at::Tensor& sparse,
      const at::Tensor& indices,
      int64_t first,
      int64_t held,
      int64_t padding_idx) {
    const at::Tensor flat = indices.reshape({-1}).to(at::kLong);
    const at::Tensor kept =
        flat.index({flat.ge(first)
                        .logical_and(flat.lt(first + held))
                        .logical_and(flat.ne(padding_idx))});
    const at::Tensor expected =
        std::get<0>(at::_unique2(kept, /*sorted=*/true)) - first;
    EXPECT_TRUE(same(sparse.indices().select(0, 0), expected));
    EXPECT_EQ(sparse.values().size(0), expected.size(0));
  }
};

INSTANTIATE_TEST_SUITE_P(
    Kernels,
    EmbeddingBackward,
    ::testing::ValuesIn(embedding_kernels()),
    ::testing::PrintToStringParamName());

TEST_P(EmbeddingBackward, EveryDtype) {
  const at::Tensor indices = at::randint(9, {4, 6}, at::kLong);
  for (const at::ScalarType dtype :
       {at::kFloat,
        at::kDouble,
        at::kHalf,
        at::kBFloat16,
        at::kComplexFloat,
        at::kComplexDouble}) {
    SCOPED_TRACE(dtype);
    check_parts(whole_numbers({4, 6, 5}, dtype), indices, 9, 4, -1);
  }
}

TEST_P(EmbeddingBackward, ComplexParts) {
  const at::Tensor real = whole_numbers({6, 3}, at::kFloat);
  const at::Tensor imaginary = whole_numbers({6, 3}, at::kFloat);
  const at::Tensor indices = at::tensor({1, 1, 0, 3, 1, 2});
  const auto backward = [&](const at::Tensor& grad) {
    return GetParam().backward(grad, {indices, 1, 2, 4}, -1, false);
  };
  EXPECT_TRUE(same(
      backward(at::complex(real, imaginary)),
      at::complex(backward(real), backward(imaginary))));
}

TEST_P(EmbeddingBackward, IndicesOfEveryShapeAndDtype) {
  for (const at::ScalarType dtype : {at::kLong, at::kInt}) {
    for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
             {}, {4}, {2, 3}, {2, 0, 3}, {1, 2, 2, 2}, {2, 2, 1, 3, 2}}) {
      SCOPED_TRACE(sizes.size());
      std::vector<int64_t> grad_sizes(sizes);
      grad_sizes.push_back(6);
      check_parts(
          whole_numbers(grad_sizes, at::kFloat),
          at::randint(10, sizes, dtype),
          10,
          4,
          3);
    }
  }
}

TEST_P(EmbeddingBackward, PaddingRowStaysZero) {
  const at::Tensor indices = at::tensor({4, 2, 4, 0, 5, 4});
  for (int64_t padding_idx = -1; padding_idx < 7; ++padding_idx) {
    check_parts(whole_numbers({6, 3}, at::kFloat), indices, 7, 3, padding_idx);
  }
}

TEST_P(EmbeddingBackward, MorePartsThanRowsAndNoColumns) {
  const at::Tensor indices = at::tensor({0, 1, 1, 0});
  check_parts(whole_numbers({4, 3}, at::kFloat), indices, 2, 4, -1);
  check_parts(whole_numbers({4, 0}, at::kFloat), indices, 2, 4, -1);
}

TEST_P(EmbeddingBackward, Strided) {
  const at::Tensor indices = at::randint(12, {6, 8}, at::kLong);
  const at::Tensor grads[] = {
      whole_numbers({8, 6, 5}, at::kFloat).transpose(0, 1),
      whole_numbers({5, 6, 8}, at::kFloat).permute({1, 2, 0}),
      whole_numbers({6, 8, 15}, at::kFloat).slice(2, 0, 15, 3),
      whole_numbers({1}, at::kFloat).expand({6, 8, 5}),
      whole_numbers({6, 1, 5}, at::kFloat).expand({6, 8, 5})};
  for (const at::Tensor& grad : grads) {
    check_parts(grad, indices, 12, 3, -1);
    check_parts(grad, indices.view({8, 6}).t(), 12, 3, -1);
  }
}

TEST_P(EmbeddingBackward, ByFrequency) {
  const at::Tensor indices = at::randint(9, {5, 8}, at::kLong);
  const at::Tensor grad = at::randn({5, 8, 4}, at::kDouble);
  const at::Tensor whole =
      at::embedding_dense_backward(grad, indices, 9, 2, true);
  for (const auto& [first, rows] :
       {std::pair{0, 4}, std::pair{4, 5}, std::pair{9, 0}, std::pair{0, 9}}) {
    EXPECT_TRUE(at::allclose(
        GetParam().backward(grad, {indices, first, rows, 9}, 2, true),
        whole.slice(0, first, first + rows),
        1e-14,
        1e-14));
  }
}

// 2048 + 1 is 2048 in half; the sum of all is not.
TEST_P(EmbeddingBackward, HalfIsRoundedOnce) {
  const at::Tensor indices = at::tensor({1, 1, 1, 1, 1});
  const at::Tensor grad =
      at::tensor({2048.0, 1.0, 1.0, 1.0, 1.0}).unsqueeze(1).to(at::kHalf);
  const at::Tensor expected =
      at::tensor({0.0, 2052.0, 0.0}).unsqueeze(1).to(at::kHalf);
  EXPECT_TRUE(
      same(GetParam().backward(grad, {indices, 0, 3, 3}, -1, false), expected));
  EXPECT_TRUE(same(
      GetParam().sparse_backward(grad, {indices, 0, 3, 3}, -1).to_dense(),
      expected));
  // Divided after rounding it would be 410.
  EXPECT_EQ(
      GetParam().backward(grad, {indices, 0, 3, 3}, -1, true)[1].item<double>(),
      410.5);
}

TEST_P(EmbeddingBackward, IndexOutsideTheTable) {
  const auto check = [&](const at::Tensor& indices,
                         int64_t held,
                         bool scaled,
                         const std::string& index) {
    const at::Tensor grad = at::randn({3, 4});
    const std::string expected =
        "[embedding] index " + index +
        " is outside the table of 10 rows; expected 0 to 9";
    EXPECT_EQ(
        message_of<c10::IndexError>([&] {
          GetParam().backward(grad, {indices, 2, held, 10}, -1, scaled);
        }),
        expected);
    EXPECT_EQ(
        message_of<c10::IndexError>([&] {
          GetParam().sparse_backward(grad, {indices, 2, held, 10}, -1);
        }),
        expected);
  };
  check(at::tensor({3, 12, -1}), 4, false, "12");
  check(at::tensor({3, -1, 12}, at::kInt), 4, true, "-1");
  check(at::tensor({0, 9, 10}), 0, false, "10");
}

TEST_P(EmbeddingBackward, RandomTrials) {
  for (int trial = 0; trial < 300; ++trial) {
    const auto random = [](int64_t below) {
      return at::randint(below, {}, at::kLong).item<int64_t>();
    };
    const int64_t rows = 1 + random(40);
    const int64_t n = random(trial % 10 == 0 ? 2'000 : 60);
    SCOPED_TRACE(trial);
    check_parts(
        whole_numbers({n, random(12)}, at::kFloat),
        at::randint(rows, {n}, trial % 2 == 0 ? at::kLong : at::kInt),
        rows,
        1 + random(6),
        random(3) == 0 ? random(rows) : -1);
  }
}

TEST(EmbeddingBackwardArguments, Refused) {
  const at::Tensor indices = at::tensor({1, 2});
  EXPECT_EQ(
      message_of<c10::ValueError>([&] {
        lookup_rows_backward(at::zeros({3, 4}), {indices, 0, 4, 4}, -1, false);
      }),
      "[embedding_backward] expected a gradient of the shape of the indices, "
      "[2], and one dimension more but got [3, 4]");
  EXPECT_EQ(
      message_of<c10::TypeError>([&] {
        lookup_rows_sparse_backward(
            at::zeros({2, 4}, at::kLong), {indices, 0, 4, 4}, -1);
      }),
      "[embedding_backward] expected a floating point or complex gradient but "
      "got Long");
  EXPECT_THROW(
      lookup_rows_backward(at::zeros({2, 4}), {indices, 3, 2, 4}, -1, false),
      c10::ValueError);
}

// Term after term in the order of the indices, on any number of threads.
TEST(EmbeddingBackwardOrder, SameBitsOnAnyNumberOfThreads) {
  const int64_t n = 20'000;
  const at::Tensor indices = at::randint(1'000, {n}, at::kLong);
  const at::Tensor grad = at::randn({n, 16});
  at::Tensor expected = at::zeros({500, 16});
  const auto index = indices.accessor<int64_t, 1>();
  const auto term = grad.accessor<float, 2>();
  auto sum = expected.accessor<float, 2>();
  for (int64_t i = 0; i < n; ++i) {
    if (index[i] >= 250 && index[i] < 750) {
      for (int64_t j = 0; j < 16; ++j) {
        sum[index[i] - 250][j] += term[i][j];
      }
    }
  }
  at::Tensor scaled_once;
  for (const int threads : {1, 2, 4}) {
    const ThreadCount count(threads);
    EXPECT_TRUE(same(
        lookup_rows_backward(grad, {indices, 250, 500, 1'000}, -1, false),
        expected));
    EXPECT_TRUE(same(
        lookup_rows_sparse_backward(grad, {indices, 250, 500, 1'000}, -1)
            .to_dense(),
        expected));
    const at::Tensor scaled =
        lookup_rows_backward(grad, {indices, 250, 500, 1'000}, -1, true);
    if (threads == 1) {
      scaled_once = scaled;
    }
    EXPECT_TRUE(same(scaled, scaled_once));
  }
}

TEST(EmbeddingBackwardOrder, FirstBadIndexOnAnyNumberOfThreads) {
  at::Tensor indices = at::randint(1'000, {20'000}, at::kLong);
  indices[15'000] = 2'000;
  indices[9'000] = 3'000;
  for (const int threads : {1, 4}) {
    const ThreadCount count(threads);
    EXPECT_EQ(
        message_of<c10::IndexError>([&] {
          lookup_rows_backward(
              at::ones({20'000, 8}), {indices, 0, 1'000, 1'000}, -1, false);
        }),
        "[embedding] index 3000 is outside the table of 1000 rows; expected 0 "
        "to 999");
  }
}

}  // namespace embedding_backward_test
}  // namespace tessera::detail
