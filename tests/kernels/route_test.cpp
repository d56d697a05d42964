// route_rows against at::_unique2.
#include "kernels/lookup/route.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "embedding_parts.h"
#include "kernels/lookup/lookup_kernels.h"

namespace tessera::detail {
namespace route_test {

using RouteRows = decltype(&route_rows);

Route route_rows_on_gpu(const at::Tensor& indices, c10::IntArrayRef bounds) {
  Route route = route_rows(to_gpu(indices), bounds);
  route.wanted = from_gpu(route.wanted);
  route.place = from_gpu(route.place);
  return route;
}

std::vector<RouteRows> route_kernels() {
  std::vector<RouteRows> all{&route_rows, LookupKernels::composed().route};
  if (has_gpu()) {
    all.push_back(&route_rows_on_gpu);
  }
  return all;
}

class RouteTest : public ::testing::TestWithParam<RouteRows> {
 protected:
  void check(
      const at::Tensor& indices, const std::vector<int64_t>& bounds) const {
    const Route route = GetParam()(indices, bounds);
    const at::Tensor long_indices = indices.to(at::kLong);
    EXPECT_TRUE(same(
        route.wanted,
        std::get<0>(at::_unique2(long_indices, /*sorted=*/true))));
    EXPECT_TRUE(route.place.is_contiguous());
    EXPECT_TRUE(same(
        route.wanted.index_select(0, route.place.reshape({-1}))
            .view(indices.sizes()),
        long_indices));
    ASSERT_EQ(route.counts.size(), bounds.size() - 1);
    for (size_t c = 0; c + 1 < bounds.size(); ++c) {
      EXPECT_EQ(
          route.counts[c],
          route.wanted.ge(bounds[c])
              .logical_and(route.wanted.lt(bounds[c + 1]))
              .sum()
              .item<int64_t>())
          << "owner " << c;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(
    Kernels,
    RouteTest,
    ::testing::ValuesIn(route_kernels()),
    [](const auto& info) {
      return info.index == 0 ? "cpu" : info.index == 1 ? "composed" : "gpu";
    });

TEST_P(RouteTest, Written) {
  const Route route =
      GetParam()(at::tensor({7, 2, 7, 0, 2, 9}).view({2, 3}), {0, 3, 3, 8, 10});
  EXPECT_TRUE(same(route.wanted, at::tensor({0, 2, 7, 9}, at::kLong)));
  EXPECT_TRUE(same(
      route.place, at::tensor({2, 1, 2, 0, 1, 3}, at::kLong).view({2, 3})));
  EXPECT_EQ(route.counts, (c10::SmallVector<int64_t, 5>{2, 0, 1, 1}));
}

TEST_P(RouteTest, EveryShapeAndSize) {
  for (const at::ScalarType dtype : {at::kLong, at::kInt}) {
    check(at::randint(9, {}, dtype), {0, 9});
    check(at::empty({0}, dtype), {0, 3, 9});
    check(at::empty({2, 0, 3}, dtype), {0, 0});
    check(at::randint(9, {6, 8}, dtype).t(), {0, 0, 5, 9, 9});
    check(at::randint(9, {2, 3, 2, 2, 2}, dtype), {0, 3, 6, 9});
    check(
        at::randint(100'000, {5'000}, dtype),
        {0, 25'000, 50'000, 75'000, 100'000});
  }
}

TEST_P(RouteTest, RandomTrials) {
  for (int trial = 0; trial < 300; ++trial) {
    const auto random = [](int64_t below) {
      return at::randint(below, {}, at::kLong).item<int64_t>();
    };
    const int64_t rows = 1 + random(1'000);
    SCOPED_TRACE(trial);
    check(
        at::randint(rows, {random(900)}, at::kLong),
        chunk_bounds(rows, 1 + random(7)));
  }
}

TEST_P(RouteTest, IndexOutsideTheTable) {
  EXPECT_EQ(
      message_of<c10::IndexError>(
          [&] { GetParam()(at::tensor({3, 12, -1}), {0, 5, 10}); }),
      "[embedding] index 12 is outside the table of 10 rows; expected 0 to 9");
  EXPECT_EQ(
      message_of<c10::IndexError>(
          [&] { GetParam()(at::tensor({3, -1, 12}, at::kInt), {0, 5, 10}); }),
      "[embedding] index -1 is outside the table of 10 rows; expected 0 to 9");
}

TEST(RouteArguments, IndicesOfAnotherDtype) {
  EXPECT_THROW(route_rows(at::zeros({2}), {0, 4}), c10::TypeError);
}

}  // namespace route_test
}  // namespace tessera::detail
