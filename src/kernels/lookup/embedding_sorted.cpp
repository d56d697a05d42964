#include "kernels/lookup/embedding_sorted.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "kernels/lookup/embedding_index.h"

namespace tessera::detail {
namespace {

// Below this many, comparing is faster than counting.
constexpr int64_t kFewEntries = 64;
// The counters of one digit fill half of a first-level cache.
constexpr int kDigitBits = 11;

// One pass of a radix sort: stable by `width` bits of the entries from `shift`.
void sort_digit(
    const uint64_t* from, uint64_t* to, int64_t n, int shift, int width) {
  std::array<int64_t, size_t{1} << kDigitBits> places;
  const uint64_t mask = (uint64_t{1} << width) - 1;
  std::fill_n(places.begin(), mask + 1, 0);
  for (int64_t i = 0; i < n; ++i) {
    ++places[(from[i] >> shift) & mask];
  }
  int64_t total = 0;
  for (uint64_t digit = 0; digit <= mask; ++digit) {
    total += std::exchange(places[digit], total);
  }
  for (int64_t i = 0; i < n; ++i) {
    to[places[(from[i] >> shift) & mask]++] = from[i];
  }
}

template <class Index>
[[noreturn]] void throw_first_bad(
    const Index* indices, int64_t n, int64_t table_rows) {
  const Index* bad = std::find_if(indices, indices + n, [&](Index index) {
    return !is_inside(index, table_rows);
  });
  throw_outside_table(*bad, table_rows);
}

}  // namespace

template <class Index>
SortedRows::SortedRows(const Index* indices, int64_t n, const Range& range)
    : position_bits_(std::bit_width(static_cast<uint64_t>(n))) {
  const int row_bits = std::bit_width(static_cast<uint64_t>(range.rows));
  TORCH_CHECK_NOT_IMPLEMENTED(
      row_bits + position_bits_ <= 64,
      "[embedding] expected fewer than 2^64 pairs of a row held and an index "
      "but "
      "got ",
      range.rows,
      " rows and ",
      n,
      " indices; look up fewer indices at a time");
  entries_.reset(new uint64_t[n + 1]);
  bool good = true;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t index = indices[i];
    const int64_t row = offset_from(range.first_row, index);
    good &= is_inside(index, range.table_rows);
    // Written always and kept if held: which one it is cannot be foretold.
    entries_[size_] =
        static_cast<uint64_t>(row) << position_bits_ | static_cast<uint64_t>(i);
    size_ += static_cast<int64_t>(is_inside(row, range.rows)) &
             static_cast<int64_t>(index != range.skip);
  }
  if (!good) {
    throw_first_bad(indices, n, range.table_rows);
  }
  sort_by_row(entries_, size_, position_bits_, row_bits);
}

void sort_by_row(
    std::unique_ptr<uint64_t[]>& keys, int64_t n, int shift, int row_bits) {
  if (n < kFewEntries) {
    std::sort(keys.get(), keys.get() + n);
    return;
  }
  const int passes = (row_bits + kDigitBits - 1) / kDigitBits;
  const int width = passes == 0 ? 0 : (row_bits + passes - 1) / passes;
  std::unique_ptr<uint64_t[]> other(new uint64_t[n]);
  for (int pass = 0; pass < passes; ++pass) {
    sort_digit(keys.get(), other.get(), n, shift + pass * width, width);
    std::swap(keys, other);
  }
}

template SortedRows::SortedRows(const int32_t*, int64_t, const Range&);
template SortedRows::SortedRows(const int64_t*, int64_t, const Range&);

}  // namespace tessera::detail
