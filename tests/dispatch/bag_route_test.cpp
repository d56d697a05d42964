// Routes of bags on a device, which are composed of ATen's ops and so run on
// the CPU too, against those of the CPU.
#include "embedding/bag_route.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/result.h"

namespace tessera::detail {
namespace bag_route_test {

Sizes bounds_of(int64_t rows, int64_t ranks) {
  Sizes bounds{0};
  const int64_t part = (rows + ranks - 1) / ranks;
  for (int64_t r = 1; r <= ranks; ++r) {
    bounds.push_back(std::min(rows, r * part));
  }
  return bounds;
}

LookupInput bags_of(
    const std::vector<int64_t>& lengths, int64_t rows, at::ScalarType dtype) {
  int64_t n = 0;
  std::vector<int64_t> bounds{0};
  for (const int64_t length : lengths) bounds.push_back(n += length);
  return {
      at::randint(0, rows, {n}, at::TensorOptions(dtype)),
      at::tensor(bounds, at::kLong),
      at::Tensor()};
}

LookupQuery query_of(int64_t left_out, BagStrategy strategy) {
  LookupQuery query;
  query.padding_idx = left_out;
  query.strategy = strategy;
  return query;
}

const std::vector<std::vector<int64_t>>& shapes() {
  static const std::vector<std::vector<int64_t>> all{
      {},
      {0},
      {1},
      {0, 0, 0},
      {3, 0, 5, 1},
      {0, 7, 0, 0, 2, 9, 1, 1, 0},
      {40, 1, 0, 33},
      std::vector<int64_t>(60, 4)};
  return all;
}

template <class Check>
void for_each_case(const Check& check) {
  torch::manual_seed(7);
  for (const auto& lengths : shapes()) {
    for (const int64_t rows : {1, 2, 9, 50}) {
      for (const int64_t ranks : {1, 2, 3, 4, 7}) {
        for (const int64_t left_out : {-1, 0, 5}) {
          for (const auto dtype : {at::kInt, at::kLong}) {
            SCOPED_TRACE(
                std::to_string(lengths.size()) + " bags, " +
                std::to_string(rows) + " rows, " + std::to_string(ranks) +
                " ranks, without " + std::to_string(left_out));
            check(
                bags_of(lengths, rows, dtype),
                bounds_of(rows, ranks),
                left_out);
          }
        }
      }
    }
  }
}

TEST(BagRoute, OnADeviceIsThatOfTheCpu) {
  for_each_case(
      [](const LookupInput& input, const Sizes& bounds, int64_t left_out) {
        const auto ranks = static_cast<int64_t>(bounds.size()) - 1;
        for (const int64_t self : {int64_t{0}, ranks - 1}) {
          for (const auto strategy :
               {BagStrategy::Pooled, BagStrategy::Cheapest}) {
            const auto query = query_of(left_out, strategy);
            const auto wanted = route_bags(input, query, bounds, self);
            const auto found = route_bags_on_device(input, query, bounds, self);
            EXPECT_EQ(found.bag_counts, wanted.bag_counts);
            EXPECT_EQ(found.entry_counts, wanted.entry_counts);
            EXPECT_EQ(found.row_counts, wanted.row_counts);
            EXPECT_TRUE(at::equal(found.request, wanted.request));
            EXPECT_TRUE(at::equal(found.bags, wanted.bags));
            EXPECT_TRUE(at::equal(found.starts, wanted.starts));
            EXPECT_TRUE(at::equal(found.places, wanted.places));
            EXPECT_EQ(found.longest, wanted.longest);
            EXPECT_EQ(found.padding, wanted.padding);
          }
        }
      });
}

TEST(BagRoute, RequestsUnpackedOnADeviceAreThoseOfTheCpu) {
  for_each_case(
      [](const LookupInput& input, const Sizes& bounds, int64_t left_out) {
        // Requests of two ranks: a route to several owners has their form.
        const auto route = route_bags(
            input, query_of(left_out, BagStrategy::Pooled), bounds, 0);
        for (const int64_t absent : {-1, 77}) {
          const auto wanted = unpack_requests(
              route.request, route.bag_counts, route.entry_counts, absent);
          const auto found = unpack_requests_on_device(
              route.request, route.bag_counts, route.entry_counts, absent);
          EXPECT_TRUE(at::equal(found.input.offsets, wanted.input.offsets));
          EXPECT_TRUE(at::equal(found.firsts, wanted.firsts));
          // Behind the last bag there may be more, which is held nowhere.
          const int64_t n = wanted.input.indices.size(0);
          EXPECT_TRUE(at::equal(
              found.input.indices.slice(0, 0, n), wanted.input.indices));
          EXPECT_TRUE(
              found.input.indices.slice(0, n).eq(absent).all().item<bool>());
        }
      });
}

}  // namespace bag_route_test
}  // namespace tessera::detail
