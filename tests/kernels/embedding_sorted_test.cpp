// SortedRows against a stable sort.
#include "kernels/lookup/embedding_sorted.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace tessera::detail {
namespace embedding_sorted_test {

using Entry = std::pair<int64_t, int64_t>;  // row, position

std::vector<Entry> entries_of(const SortedRows& sorted) {
  std::vector<Entry> entries;
  for (int64_t i = 0; i < sorted.size(); ++i) {
    entries.emplace_back(sorted.row(i), sorted.position(i));
  }
  return entries;
}

template <class Index>
void check(int64_t n, const SortedRows::Range& range) {
  std::mt19937_64 random(n);
  std::vector<Index> indices(n);
  std::vector<Entry> expected;
  for (int64_t i = 0; i < n; ++i) {
    indices[i] =
        static_cast<Index>(random() % static_cast<uint64_t>(range.table_rows));
    const int64_t row = indices[i] - range.first_row;
    if (row >= 0 && row < range.rows && indices[i] != range.skip) {
      expected.emplace_back(row, i);
    }
  }
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(entries_of(SortedRows(indices.data(), n, range)), expected)
      << n << " of " << range.table_rows;
}

TEST(SortedRows, FewAndMany) {
  for (const int64_t n : {0, 1, 7, 63, 64, 65, 5'000}) {
    for (const int64_t table : {1, 2, 100, 2'048, 100'000, 5'000'000}) {
      check<int32_t>(n, {0, table, table, -1});
      check<int64_t>(n, {table / 3, table / 2, table, table / 3});
    }
  }
}

TEST(SortedRows, TablesBeyond32Bits) {
  const int64_t table = int64_t{1} << 45;
  check<int64_t>(3'000, {0, table, table, -1});
  check<int64_t>(3'000, {table / 4, table / 2, table, -1});
}

TEST(SortedRows, TooManyPairs) {
  const int64_t table = int64_t{1} << 62;
  const std::vector<int64_t> indices(3);
  try {
    const SortedRows sorted(indices.data(), 3, {0, table, table, -1});
    FAIL() << "expected an exception";
  } catch (const c10::NotImplementedError& error) {
    EXPECT_STREQ(
        error.what_without_backtrace(),
        "[embedding] expected fewer than 2^64 pairs of a row held and an index "
        "but got 4611686018427387904 rows and 3 indices; look up fewer indices "
        "at a time");
  }
}

}  // namespace embedding_sorted_test
}  // namespace tessera::detail
