// Bags drawn at random, by the thousand, forward and backward against one
// device. A failure prints the case, whole.
#include <gtest/gtest.h>

#include "testing/draw.h"
#include "tests/api/embedding_bag_cases.h"

namespace ts = tessera;
using ts::testing::BagCase;
using ts::testing::Draw;
using ts::testing::expect_trials;
using ts::testing::Mode;
using ts::testing::over_processes;

namespace embedding_bag_random_test {

// Bags whose indices every one of `ranks` has as many of, so that cuts are
// between bags.
std::vector<int64_t> aligned_lengths(Draw& draw, int64_t ranks) {
  const int64_t each = draw.number(1, 3);
  const int64_t entries = draw.number(0, 6);
  std::vector<int64_t> lengths;
  for (int64_t r = 0; r < ranks; ++r) {
    int64_t left = entries;
    for (int64_t b = 0; b < each; ++b) {
      const int64_t length = b + 1 == each ? left : draw.number(0, left);
      lengths.push_back(length);
      left -= length;
    }
  }
  return lengths;
}

std::vector<int64_t> any_lengths(Draw& draw) {
  std::vector<int64_t> lengths(draw.number(0, 7));
  for (auto& length : lengths) {
    length = draw.chance(4) ? 0 : draw.number(1, 5);
  }
  return lengths;
}

BagCase drawn(Draw& draw, const ts::DeviceMesh& mesh) {
  BagCase c;
  c.mode = draw.of<Mode>({Mode::Sum, Mode::Mean, Mode::Max});
  c.dtype = draw.of<c10::ScalarType>(
      {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16});
  // One device rounds the means of half kinds at each step.
  if (c.mode == Mode::Mean && c10::elementSize(c.dtype) == 2) {
    c.dtype = at::kFloat;
  }
  c.index_dtype = draw.of<c10::ScalarType>({at::kInt, at::kLong});
  c.rows = draw.number(1, 14);
  c.columns = draw.number(1, 9);
  c.by_offsets = draw.chance(2);
  if (c.by_offsets) {
    c.lengths = draw.chance(4) ? any_lengths(draw)
                               : aligned_lengths(draw, mesh.size(0));
    c.include_last_offset = draw.chance(3);
    c.trailing = c.include_last_offset && draw.chance(4) ? 2 : 0;
  } else {
    c.lengths.assign(draw.number(1, 9), draw.number(1, 4));
  }
  c.weighted = c.mode == Mode::Sum && draw.chance(2);
  c.sparse = c.mode != Mode::Max && draw.chance(4);
  if (draw.chance(2)) {
    c.padding_idx = draw.number(-c.rows, c.rows - 1);
  }
  c.table = draw.layout(mesh.ndim(), 2);
  c.batch = draw.layout(mesh.ndim(), 1);
  c.strategies.strategy = draw.of<ts::LookupStrategy>(
      {ts::LookupStrategy::Cheapest,
       ts::LookupStrategy::Gather,
       ts::LookupStrategy::Exchange,
       ts::LookupStrategy::Exchange});
  c.strategies.bag_strategy = draw.of<ts::BagStrategy>(
      {ts::BagStrategy::Cheapest,
       ts::BagStrategy::Pooled,
       ts::BagStrategy::Rows});
  c.seed = draw.number(0, 1 << 30);
  c.specials = draw.chance(3);
  return c;
}

class RandomBags : public ::testing::TestWithParam<std::vector<int64_t>> {};

TEST_P(RandomBags, AsOnOneDevice) {
  expect_trials(
      GetParam(),
      over_processes() ? 60 : 1000,
      [](Draw& draw, const ts::DeviceMesh& mesh) {
        const auto c = drawn(draw, mesh);
        try {
          return ts::testing::bag_failure(c, mesh);
        } catch (const c10::Error& error) {
          return c.str() + ": " + error.what_without_backtrace();
        }
      });
}

INSTANTIATE_TEST_SUITE_P(
    Meshes,
    RandomBags,
    ::testing::ValuesIn(ts::testing::trial_meshes()),
    [](const auto& info) { return ts::testing::mesh_name(info.param); });

}  // namespace embedding_bag_random_test
