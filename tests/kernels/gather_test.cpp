// gather_part and its backward against at::gather and scatter_add on the whole
// tensor.
#include "kernels/gather/gather.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "embedding_parts.h"
#include "kernels/gather/gather_kernels.h"

namespace tessera::detail {
namespace gather_test {

struct GatherFunctions {
  const char* name;
  decltype(&gather_part) forward;
  decltype(&gather_part_backward) backward;
};

std::ostream& operator<<(std::ostream& out, const GatherFunctions& kernels) {
  return out << kernels.name;
}

at::Tensor gather_part_on_gpu(
    const at::Tensor& self, const HeldPlaces& places) {
  const auto& [dim, index, first, size] = places;
  const at::Tensor there = to_gpu(index);
  return from_gpu(gather_part(to_gpu(self), {dim, there, first, size}));
}

at::Tensor gather_part_backward_on_gpu(
    const at::Tensor& grad,
    const HeldPlaces& places,
    c10::IntArrayRef local_sizes) {
  const auto& [dim, index, first, size] = places;
  const at::Tensor there = to_gpu(index);
  return from_gpu(gather_part_backward(
      to_gpu(grad), {dim, there, first, size}, local_sizes));
}

std::vector<GatherFunctions> gather_kernels() {
  const auto& composed = GatherKernels::composed();
  std::vector<GatherFunctions> all{
      {"cpu", gather_part, gather_part_backward},
      {"composed", composed.forward, composed.backward}};
  if (has_gpu()) {
    all.push_back({"gpu", gather_part_on_gpu, gather_part_backward_on_gpu});
  }
  return all;
}

class GatherPart : public ::testing::TestWithParam<GatherFunctions> {
 protected:
  // Every part of `self`, cut along `dim`, and its gradient.
  void check_parts(
      const at::Tensor& self,
      int64_t dim,
      const at::Tensor& index,
      int64_t parts) const {
    const int64_t size = self.size(dim);
    const auto bounds = chunk_bounds(size, parts);
    const at::Tensor wide = index.to(at::kLong);
    const at::Tensor whole = at::gather(self, dim, wide);
    for (int64_t c = 0; c < parts; ++c) {
      SCOPED_TRACE(c);
      const at::Tensor part = self.slice(dim, bounds[c], bounds[c + 1]);
      const at::Tensor held =
          wide.ge(bounds[c]).logical_and(wide.lt(bounds[c + 1]));
      const at::Tensor out =
          GetParam().forward(part, {dim, index, bounds[c], size});
      EXPECT_TRUE(
          same(out, at::where(held, whole, at::zeros({}, self.options()))));
      EXPECT_TRUE(out.is_contiguous());
      if (self.is_floating_point()) {
        const at::Tensor grad =
            whole_numbers(index.sizes(), self.scalar_type());
        check_backward(grad, dim, index, self.sizes(), bounds, c);
        check_backward(
            grad.mT().contiguous().mT(), dim, index, self.sizes(), bounds, c);
      }
    }
  }

  void check_backward(
      const at::Tensor& grad,
      int64_t dim,
      const at::Tensor& index,
      at::IntArrayRef sizes,
      const std::vector<int64_t>& bounds,
      int64_t c) const {
    const at::Tensor whole =
        at::zeros(sizes, at::kDouble)
            .scatter_add_(dim, index.to(at::kLong), grad.to(at::kDouble))
            .to(grad.scalar_type());
    const at::Tensor expected = whole.slice(dim, bounds[c], bounds[c + 1]);
    EXPECT_TRUE(same(
        GetParam().backward(
            grad, {dim, index, bounds[c], sizes[dim]}, expected.sizes()),
        expected));
  }
};

INSTANTIATE_TEST_SUITE_P(
    Kernels,
    GatherPart,
    ::testing::ValuesIn(gather_kernels()),
    ::testing::PrintToStringParamName());

TEST_P(GatherPart, EveryDimension) {
  const at::Tensor self = at::randn({5, 7, 6});
  for (int64_t dim = 0; dim < 3; ++dim) {
    for (const at::ScalarType dtype : {at::kLong, at::kInt}) {
      for (const std::vector<int64_t>& sizes :
           std::vector<std::vector<int64_t>>{
               {5, 7, 6}, {2, 3, 4}, {1, 1, 1}, {5, 0, 3}}) {
        check_parts(self, dim, at::randint(self.size(dim), sizes, dtype), 4);
      }
    }
  }
  check_parts(at::randn({9, 2}), 0, at::randint(9, {40, 2}, at::kLong), 4);
}

TEST_P(GatherPart, EveryDtype) {
  const at::Tensor index = at::randint(9, {4, 6}, at::kLong);
  for (const at::ScalarType dtype :
       {at::kFloat,
        at::kDouble,
        at::kHalf,
        at::kBFloat16,
        at::kByte,
        at::kLong,
        at::kBool,
        at::kComplexFloat,
        at::kComplexDouble}) {
    SCOPED_TRACE(dtype);
    check_parts(whole_numbers({4, 9}, dtype), 1, index, 4);
  }
}

TEST_P(GatherPart, Strided) {
  const at::Tensor index = at::randint(6, {4, 6}, at::kLong);
  for (const at::Tensor& self :
       {at::randn({6, 6}).t(),
        at::randn({12, 18}).slice(0, 0, 12, 2).slice(1, 0, 18, 3),
        at::randn({6, 1}).expand({6, 6})}) {
    check_parts(self, 0, index, 4);
    check_parts(self, 1, index.t(), 4);
    check_parts(self, 1, index.slice(1, 0, 6, 2), 4);
  }
}

TEST_P(GatherPart, Scalars) {
  const at::Tensor self = at::scalar_tensor(3.0);
  const at::Tensor zero = at::zeros({}, at::kLong);
  EXPECT_TRUE(same(GetParam().forward(self, {0, zero, 0, 1}), self));
  EXPECT_TRUE(same(GetParam().forward(self, {0, zero, 2, 3}), at::zeros({})));
  EXPECT_TRUE(same(GetParam().backward(self, {0, zero, 0, 1}, {}), self));
}

TEST_P(GatherPart, ZerosBesideNotFiniteEntries) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor index = at::tensor({0, 5, 3});
  EXPECT_TRUE(same(
      GetParam().forward(at::full({2}, nan), {0, index, 6, 8}),
      at::zeros({3})));
  EXPECT_TRUE(same(
      GetParam().backward(at::full({3}, nan), {0, index, 6, 8}, {2}),
      at::zeros({2})));
}

TEST_P(GatherPart, HalfIsRoundedOnce) {
  const at::Tensor grad =
      at::tensor({2048.0, 1.0, 1.0, 1.0, 1.0}).to(at::kHalf);
  EXPECT_EQ(
      GetParam()
          .backward(grad, {0, at::ones({5}, at::kLong), 0, 2}, {2})[1]
          .item<double>(),
      2052);
}

TEST_P(GatherPart, IndexOutsideTheDimension) {
  const at::Tensor index = at::tensor({3, 1, 12, -1}).view({2, 2});
  const std::string expected =
      "[gather] index 12 is outside dimension 1 of size 10; expected 0 to 9";
  for (const int64_t held : {4, 0}) {
    EXPECT_EQ(
        message_of<c10::IndexError>([&] {
          GetParam().forward(at::randn({2, held}), {1, index, 2, 10});
        }),
        expected);
    EXPECT_EQ(
        message_of<c10::IndexError>([&] {
          GetParam().backward(at::randn({2, 2}), {1, index, 2, 10}, {2, held});
        }),
        expected);
  }
}

TEST(GatherPartArguments, NegativeDimension) {
  const at::Tensor self = at::randn({3, 4});
  const at::Tensor index = at::randint(4, {3, 2}, at::kLong);
  EXPECT_TRUE(
      same(gather_part(self, {-1, index, 0, 4}), at::gather(self, 1, index)));
}

TEST(GatherPartArguments, Refused) {
  const at::Tensor self = at::randn({3, 4});
  const at::Tensor index = at::zeros({3, 2}, at::kLong);
  EXPECT_THROW(
      gather_part(self, {1, index.to(at::kFloat), 0, 4}), c10::TypeError);
  EXPECT_EQ(
      message_of<c10::ValueError>(
          [&] { gather_part(self, {1, index.select(1, 0), 0, 4}); }),
      "[gather] expected an index of as many dimensions as the input, 2, but "
      "got 1");
  EXPECT_EQ(
      message_of<c10::ValueError>(
          [&] { gather_part(self, {1, at::zeros({4, 2}, at::kLong), 0, 4}); }),
      "[gather] expected an index of at most the input's size 3 in dimension 0 "
      "but got 4");
  EXPECT_THROW(gather_part(self, {1, index, 1, 4}), c10::ValueError);
  EXPECT_EQ(
      message_of<c10::ValueError>([&] {
        gather_part_backward(at::zeros({3, 1}), {1, index, 0, 4}, {3, 4});
      }),
      "[gather_backward] expected a gradient of the shape of the index, [3, "
      "2], but got [3, 1]");
  EXPECT_THROW(
      gather_part_backward(
          at::zeros({3, 2}, at::kLong), {1, index, 0, 4}, {3, 4}),
      c10::TypeError);
}

TEST(GatherPartThreads, SameBitsOnAnyNumberOfThreads) {
  for (int64_t dim = 0; dim < 2; ++dim) {
    const at::Tensor self = at::randn({300, 200});
    const at::Tensor index =
        at::randint(2 * self.size(dim), {300, 200}, at::kLong);
    const at::Tensor grad = at::randn({300, 200});
    const auto run = [&](int threads) {
      const ThreadCount count(threads);
      const int64_t held = self.size(dim);
      return std::pair{
          gather_part(self, {dim, index, held / 2, 2 * held}),
          gather_part_backward(
              grad, {dim, index, held / 2, 2 * held}, self.sizes())};
    };
    const auto [forward, backward] = run(1);
    const auto [forward4, backward4] = run(4);
    EXPECT_TRUE(same(forward4, forward));
    EXPECT_TRUE(same(backward4, backward));
  }
}

}  // namespace gather_test
}  // namespace tessera::detail
