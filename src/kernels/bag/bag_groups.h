// The entries of all bags that a part holds, row after row: what every backward
// works on, so that each row's gradient is made at once, by one thread, in the
// order of the entries.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/bag/bag_reader.h"

namespace tessera::detail {

struct RowGroups {
  // The rows of the part that have an entry, ascending.
  std::vector<int64_t> rows;
  // Where the entries of each begin, and the end of the last.
  std::vector<int64_t> starts;
  // Per entry: its bag, and its place in `indices`.
  std::vector<int32_t> bags;
  std::vector<int32_t> places;
};

// Groups what `reader` reads for a part of `rows` rows. Time and memory are of
// the order of the indices, not of the table. Throws as BagReader's
// check_range, and c10::NotImplementedError from 2^32 rows on. If `counts` is
// not nullptr it gets the number of entries of each bag, padding left out.
RowGroups group_by_row(
    const BagReader& reader,
    int64_t rows,
    std::vector<int64_t>* counts = nullptr);

}  // namespace tessera::detail
