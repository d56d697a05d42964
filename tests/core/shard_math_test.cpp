#include "tessera/shard_math.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/chunk.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "scoped_process_context.h"

namespace tessera {
namespace shard_math_test {

using detail::ScopedProcessContext;
using ::testing::ElementsAre;

TEST(Chunk, AsTorchChunk) {
  for (int64_t n = 0; n <= 20; ++n) {
    const at::Tensor whole = at::arange(n);
    for (int64_t parts = 1; parts <= 8; ++parts) {
      const auto expected = whole.chunk(parts);
      const Sizes sizes = chunk_sizes(n, parts);
      ASSERT_EQ(static_cast<int64_t>(sizes.size()), parts);
      int64_t end = 0;
      for (int64_t i = 0; i < parts; ++i) {
        const Range range = chunk(n, parts, i);
        EXPECT_EQ(range.begin, end) << n << " in " << parts;
        EXPECT_EQ(range.size, sizes[i]) << n << " in " << parts;
        end = range.begin + range.size;
        // torch.chunk leaves trailing empty parts out.
        if (i >= static_cast<int64_t>(expected.size())) {
          EXPECT_EQ(range.size, 0) << n << " in " << parts;
        } else {
          EXPECT_TRUE(
              whole.narrow(0, range.begin, range.size).equal(expected[i]))
              << n << " in " << parts;
        }
      }
      EXPECT_EQ(end, n);
    }
  }
}

TEST(Chunk, Examples) {
  EXPECT_THAT(chunk_sizes(8, 4), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(chunk_sizes(7, 4), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(chunk_sizes(5, 4), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(chunk_sizes(2, 4), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(chunk_sizes(10, 6), ElementsAre(2, 2, 2, 2, 2, 0));
}

TEST(Chunk, LargeSizes) {
  const int64_t n = int64_t{1} << 60;
  EXPECT_EQ(chunk(n, 4, 3), (Range{3 * (n / 4), n / 4}));
  EXPECT_EQ(chunk(n - 1, 4, 3), (Range{3 * (n / 4), n / 4 - 1}));
}

TEST(Chunk, Refuses) {
  EXPECT_THROW(chunk(-1, 2, 0), c10::ValueError);
  EXPECT_THROW(chunk(4, 0, 0), c10::ValueError);
  EXPECT_THROW(chunk(4, 2, 2), c10::IndexError);
  EXPECT_THROW(chunk(4, 2, -1), c10::IndexError);
  EXPECT_THROW(chunk_sizes(4, 0), c10::ValueError);
}

// The sizes of dimension 0 of a tensor of size n at all positions.
std::vector<int64_t> sizes_at_all(
    int64_t n, const DeviceMesh& mesh, PlacementsRef placements) {
  std::vector<int64_t> sizes;
  for (size_t p = 0; p < mesh.all_ranks().size(); ++p) {
    sizes.push_back(
        local_range(n, 0, mesh, placements, static_cast<int64_t>(p)).size);
  }
  return sizes;
}

TEST(LocalRange, Nested) {
  const ScopedProcessContext world(6);
  const DeviceMesh mesh = init_device_mesh("cpu", {2, 3});
  const Placements both = parse_placements("[S(0), S(0)]");
  // 10 = 5 + 5, and 5 = 2 + 2 + 1; 3 = 2 + 1, 2 = 1 + 1 + 0, 1 = 1 + 0 + 0.
  EXPECT_THAT(sizes_at_all(10, mesh, both), ElementsAre(2, 2, 1, 2, 2, 1));
  EXPECT_THAT(sizes_at_all(3, mesh, both), ElementsAre(1, 1, 0, 1, 0, 0));
  EXPECT_THAT(
      sizes_at_all(10, mesh, parse_placements("[R, S(0)]")),
      ElementsAre(4, 4, 2, 4, 4, 2));
  EXPECT_THAT(
      sizes_at_all(10, mesh, parse_placements("[S(0), P(sum)]")),
      ElementsAre(5, 5, 5, 5, 5, 5));
  EXPECT_THAT(
      sizes_at_all(10, mesh, parse_placements("[S(1), R]")),
      ElementsAre(10, 10, 10, 10, 10, 10));
  EXPECT_EQ(local_range(10, 0, mesh, both, 4), (Range{7, 2}));
}

// Whatever the cut, the ranges follow each other and cover the dimension.
TEST(LocalRange, CoversInOrder) {
  const ScopedProcessContext world(12);
  const DeviceMesh mesh = init_device_mesh("cpu", {2, 3, 2});
  const Placements all = parse_placements("[S(0), S(0), S(0)]");
  for (int64_t n = 0; n <= 40; ++n) {
    int64_t end = 0;
    for (int64_t p = 0; p < 12; ++p) {
      const Range range = local_range(n, 0, mesh, all, p);
      EXPECT_EQ(range.begin, end) << n;
      end += range.size;
    }
    EXPECT_EQ(end, n);
  }
}

TEST(LocalRange, Slice) {
  const ScopedProcessContext world(4);
  const std::vector<std::string> names{"dp", "tp"};
  const DeviceMesh mesh = init_device_mesh("cpu", {2, 2}, names);
  EXPECT_THAT(sizes_at_all(5, mesh["tp"], {Shard(0)}), ElementsAre(3, 2, 3, 2));
  EXPECT_THAT(sizes_at_all(5, mesh["dp"], {Shard(0)}), ElementsAre(3, 3, 2, 2));
}

TEST(LocalShape, AgreesWithRanges) {
  const ScopedProcessContext world(6);
  const DeviceMesh mesh = init_device_mesh("cpu", {2, 3});
  for (const char* text :
       {"[R, R]",
        "[S(0), R]",
        "[R, S(1)]",
        "[S(0), S(1)]",
        "[S(1), S(0)]",
        "[S(1), S(1)]",
        "[P(sum), S(2)]"}) {
    const Placements placements = parse_placements(text);
    const Sizes sizes{7, 5, 2};
    for (int64_t p = 0; p < 6; ++p) {
      const Sizes local = local_shape(sizes, mesh, placements, p);
      for (int64_t d = 0; d < 3; ++d) {
        EXPECT_EQ(local[d], local_range(sizes[d], d, mesh, placements, p).size)
            << text << " at " << p;
      }
    }
  }
  EXPECT_THAT(
      local_shape({7, 5}, mesh, parse_placements("[S(0), S(1)]"), 5),
      ElementsAre(3, 1));
  EXPECT_THAT(
      local_shape({}, mesh, parse_placements("[R, R]"), 0), ElementsAre());
}

TEST(LocalStrides, KeepTheOrderOfDimensions) {
  const struct {
    Sizes local;
    Sizes global_strides;
    Sizes expected;
  } table[] = {
      {{2, 4}, {4, 1}, {4, 1}},           // contiguous
      {{4, 2}, {8, 1}, {2, 1}},           // contiguous, cut columns
      {{2, 4}, {1, 8}, {1, 2}},           // transposed
      {{2, 1, 3}, {3, 3, 1}, {3, 3, 1}},  // a size of 1
      {{1, 5}, {5, 1}, {5, 1}},           // cut to a size of 1
      {{0, 3}, {3, 1}, {3, 1}},           // empty
      {{2, 3, 4, 5}, {60, 1, 15, 3}, {60, 1, 15, 3}},  // channels last
      {{1, 3, 4, 5}, {60, 1, 15, 3}, {60, 1, 15, 3}},
      {{2, 3}, {1, 0}, {3, 1}},  // expanded
      {{2, 3}, {0, 1}, {3, 1}},
      {{2, 3}, {0, 0}, {3, 1}},
      {{}, {}, {}},
  };
  for (const auto& row : table) {
    EXPECT_EQ(local_strides(row.local, row.global_strides), row.expected)
        << SizesRef(row.local) << " " << SizesRef(row.global_strides);
  }
  EXPECT_THROW(local_strides({2}, {1, 1}), c10::ValueError);
}

TEST(LocalStrides, ContiguousStaysContiguous) {
  for (const Sizes& sizes :
       {Sizes{4, 1, 3}, Sizes{1, 4}, Sizes{4, 1}, Sizes{1, 1, 1}}) {
    const Sizes global = row_major_strides(sizes);
    for (int64_t cut = 1; cut <= 4; ++cut) {
      Sizes local = sizes;
      local[0] = std::min(local[0], cut);
      EXPECT_EQ(local_strides(local, global), row_major_strides(local));
    }
  }
  // The size-1 stride of a contiguous tensor may be anything.
  const Sizes strides = local_strides({2, 1}, {1, 100});
  EXPECT_TRUE(at::empty_strided({2, 1}, strides).is_contiguous());
}

TEST(LocalStrides, Dense) {
  const Sizes strides = local_strides({2, 3, 4}, {5, 100, 1});
  EXPECT_TRUE(
      at::empty_strided({2, 3, 4}, strides).is_non_overlapping_and_dense());
}

TEST(Evenness, Table) {
  const ScopedProcessContext world(6);
  const DeviceMesh mesh = init_device_mesh("cpu", {2, 3});
  const struct {
    int64_t n;
    const char* placements;
    Evenness expected;
  } table[] = {
      {6, "[S(0), S(0)]", Evenness::Even},
      {12, "[S(0), S(0)]", Evenness::Even},
      {10, "[S(0), S(0)]", Evenness::NonEmpty},  // 2 2 1, 2 2 1
      {8, "[S(0), S(0)]", Evenness::Any},        // 2 2 0, 2 2 0
      {5, "[S(0), S(0)]", Evenness::Any},        // 1 1 1, 1 1 0
      {9, "[S(0), S(0)]", Evenness::Any},        // 2 2 1, 2 2 0
      {8, "[S(0), R]", Evenness::Even},
      {7, "[S(0), P(sum)]", Evenness::NonEmpty},
      {1, "[S(0), R]", Evenness::Any},
      {4, "[R, S(0)]", Evenness::Any},  // 2 2 0
      {5, "[R, S(0)]", Evenness::NonEmpty},
      {5, "[S(1), S(1)]", Evenness::Even},
      {0, "[S(0), R]", Evenness::Any},
      {0, "[R, R]", Evenness::Even},
  };
  for (const auto& row : table) {
    EXPECT_EQ(
        evenness(row.n, 0, mesh, parse_placements(row.placements)),
        row.expected)
        << row.n << " " << row.placements;
  }
}

TEST(Evenness, AgreesWithTheParts) {
  const ScopedProcessContext world(60);
  const Placements all = parse_placements("[S(0), S(0), S(0)]");
  for (const auto& shape :
       {Sizes{2, 3, 2}, Sizes{3, 4, 5}, Sizes{4, 3, 3}, Sizes{1, 5, 1}}) {
    const DeviceMesh mesh = init_device_mesh("cpu", shape);
    for (int64_t n = 1; n <= 130; ++n) {
      const auto parts = sizes_at_all(n, mesh, all);
      const bool equal = std::set(parts.begin(), parts.end()).size() == 1;
      const bool filled = *std::min_element(parts.begin(), parts.end()) > 0;
      EXPECT_EQ(
          evenness(n, 0, mesh, all),
          equal && filled ? Evenness::Even
          : filled        ? Evenness::NonEmpty
                          : Evenness::Any)
          << n << " on " << mesh;
    }
  }
}

}  // namespace shard_math_test
}  // namespace tessera
