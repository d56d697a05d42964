// Indices sorted by row: the terms of each row of a gradient side by side, and
// the distinct rows of a lookup.
#pragma once

#include <cstdint>
#include <memory>

namespace tessera::detail {

// Sorts keys that hold a row of `row_bits` bits above a position of `shift`
// bits, where positions ascend: by row, and by position among equal rows.
void sort_by_row(
    std::unique_ptr<uint64_t[]>& keys, int64_t n, int shift, int row_bits);

// The rows that indices name, ascending, each with the positions at which it is
// named, ascending too.
class SortedRows {
 public:
  // Which indices are taken: those of rows [first_row, first_row + rows) of a
  // table of `table_rows`, but not `skip` (-1: none). Rows are counted from
  // first_row.
  struct Range {
    int64_t first_row;
    int64_t rows;
    int64_t table_rows;
    int64_t skip;
  };

  // Sorts `n` indices; Index is int32_t or int64_t. Takes time and memory of
  // the order of n. Throws c10::IndexError that names the first index outside
  // the table, and c10::NotImplementedError if rows times n reaches 2^64.
  template <class Index>
  SortedRows(const Index* indices, int64_t n, const Range& range);

  // How many indices were taken.
  int64_t size() const { return size_; }
  // The row of the i-th, and its position among all indices.
  int64_t row(int64_t i) const {
    return static_cast<int64_t>(entries_[i] >> position_bits_);
  }
  int64_t position(int64_t i) const {
    return static_cast<int64_t>(
        entries_[i] & ((uint64_t{1} << position_bits_) - 1));
  }

 private:
  // A row above its position. Distinct, and in the order of both.
  std::unique_ptr<uint64_t[]> entries_;
  int64_t size_ = 0;
  int position_bits_ = 0;
};

extern template SortedRows::SortedRows(const int32_t*, int64_t, const Range&);
extern template SortedRows::SortedRows(const int64_t*, int64_t, const Range&);

}  // namespace tessera::detail
