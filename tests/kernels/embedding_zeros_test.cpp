// lazy_zeros: memory that the system gives is a tensor like any other.
#include "kernels/lookup/embedding_zeros.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/lookup/embedding.h"

namespace tessera::detail {
namespace embedding_zeros_test {

TEST(LazyZeros, SmallAndLarge) {
  for (const int64_t rows : {0, 3, 150'000}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor zeros =
          lazy_zeros({rows, 64}, at::TensorOptions().dtype(dtype));
      EXPECT_EQ(zeros.sizes(), at::IntArrayRef({rows, 64}));
      EXPECT_EQ(zeros.scalar_type(), dtype);
      EXPECT_TRUE(zeros.is_contiguous());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(zeros.data_ptr()) % 64, 0U);
      EXPECT_EQ(zeros.count_nonzero().item<int64_t>(), 0);
    }
  }
}

TEST(LazyZeros, LargeIsWritableResizableAndOutlivesItsMaker) {
  at::Tensor view;
  {
    const at::Tensor zeros = lazy_zeros({150'000, 64}, at::kFloat);
    zeros.fill_(2);
    view = zeros.slice(0, 149'999);
  }
  EXPECT_EQ(view.sum().item<float>(), 128);
  at::Tensor zeros = lazy_zeros({150'000, 64}, at::kFloat);
  zeros[149'999].fill_(1);
  zeros.resize_({200'000, 64});
  EXPECT_EQ(zeros[149'999].sum().item<float>(), 64);
  EXPECT_EQ(zeros.slice(0, 0, 149'999).count_nonzero().item<int64_t>(), 0);
}

// A gradient large enough to be made lazily.
TEST(LazyZeros, GradientOfALargeTable) {
  const at::Tensor indices = at::randint(1'000'000, {4'000}, at::kLong);
  const at::Tensor grad = at::ones({4'000, 64});
  const at::Tensor held =
      indices.index({indices.ge(250'000).logical_and(indices.lt(500'000))});
  const at::Tensor expected =
      at::zeros({250'000, 64})
          .index_add_(0, held - 250'000, at::ones({held.size(0), 64}));
  EXPECT_TRUE(at::equal(
      lookup_rows_backward(
          grad, {indices, 250'000, 250'000, 1'000'000}, -1, false),
      expected));
}

}  // namespace embedding_zeros_test
}  // namespace tessera::detail
