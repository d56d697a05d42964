// Routes of bags on a device, which are composed of ATen's ops and so run on
// the CPU too, against those of the CPU.
#include "kernels/route/bag_route.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

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

BagIndices bags_of(
    const std::vector<int64_t>& lengths, int64_t rows, at::ScalarType dtype) {
  int64_t n = 0;
  std::vector<int64_t> bounds{0};
  for (const int64_t length : lengths) bounds.push_back(n += length);
  return {
      .indices = at::randint(0, rows, {n}, at::TensorOptions(dtype)),
      .offsets = at::tensor(bounds, at::kLong),
      .include_last_offset = true};
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
            auto bags = bags_of(lengths, rows, dtype);
            bags.padding_idx = left_out;
            check(bags, bounds_of(rows, ranks));
          }
        }
      }
    }
  }
}

const BagRouteKernels& cpu() { return BagRouteKernels::cpu(); }
const BagRouteKernels& composed() { return BagRouteKernels::composed(); }

TEST(BagRoute, OnADeviceIsThatOfTheCpu) {
  for_each_case([](const BagIndices& bags, const Sizes& bounds) {
    const auto ranks = static_cast<int64_t>(bounds.size()) - 1;
    for (const int64_t self : {int64_t{0}, ranks - 1}) {
      for (const bool count_rows : {false, true}) {
        const BagOwners owners{bounds, self, count_rows};
        const auto wanted = cpu().route(bags, owners);
        const auto found = composed().route(bags, owners);
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
  for_each_case([](const BagIndices& bags, const Sizes& bounds) {
    // Requests of two ranks: a route to several owners has their form.
    const auto route = route_bags(bags, {bounds, 0, false});
    const BagRequestParts parts{
        route.request, route.bag_counts, route.entry_counts};
    for (const int64_t absent : {-1, 77}) {
      const auto wanted = cpu().unpack(parts, absent);
      const auto found = composed().unpack(parts, absent);
      EXPECT_TRUE(at::equal(found.input.offsets, wanted.input.offsets));
      EXPECT_TRUE(at::equal(found.firsts, wanted.firsts));
      // Behind the last bag there may be more, which is held nowhere.
      const int64_t n = wanted.input.indices.size(0);
      EXPECT_TRUE(
          at::equal(found.input.indices.slice(0, 0, n), wanted.input.indices));
      EXPECT_TRUE(
          found.input.indices.slice(0, n).eq(absent).all().item<bool>());
    }
  });
}

TEST(BagRoute, RepliesOnADeviceAreThoseOfTheCpu) {
  for_each_case([](const BagIndices& bags, const Sizes& bounds) {
    const auto route = route_bags(bags, {bounds, 0, false});
    const int64_t asked = route.bags.size(0);
    const auto replies = at::rand({asked, 3});
    const auto zeros = at::zeros({bags.offsets.size(0) - 1, 3});
    const auto wanted = zeros.clone();
    const auto found = zeros.clone();
    cpu().add(wanted, route, replies);
    composed().add(found, route, replies);
    EXPECT_TRUE(at::equal(found, wanted));
    for (const auto dtype : {at::kByte, at::kInt}) {
      // The first entry of each bag, and none.
      auto argmax = at::zeros({asked, 2}, dtype);
      argmax.select(1, 1).fill_(no_argmax(dtype));
      const auto places = cpu().places(route, argmax);
      EXPECT_TRUE(at::equal(composed().places(route, argmax), places));
      EXPECT_TRUE(at::equal(
          places.select(1, 0).to(at::kLong),
          route.places.index_select(0, route.starts)));
      EXPECT_TRUE(places.select(1, 1).eq(-1).all().item<bool>());
    }
  });
}

}  // namespace bag_route_test
}  // namespace tessera::detail
