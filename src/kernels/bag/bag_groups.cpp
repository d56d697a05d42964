#include "kernels/bag/bag_groups.h"

#include <c10/util/Exception.h>

#include <bit>
#include <memory>

#include "kernels/lookup/embedding_sorted.h"

namespace tessera::detail {

namespace {

// A row and, below it, the place of an entry.
using Key = uint64_t;

constexpr int kRowShift = 32;

int32_t place_of(Key key) { return static_cast<int32_t>(key & 0xffffffffU); }

}  // namespace

RowGroups group_by_row(
    const BagReader& reader, int64_t rows, std::vector<int64_t>* counts) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      rows <= int64_t{1} << kRowShift,
      "[embedding_bag] the gradient of ",
      rows,
      " rows on one device is not supported; shard the table further, to at "
      "most 4294967296 rows each");
  auto keys = std::make_unique_for_overwrite<Key[]>(reader.indices());
  auto bag_of = std::make_unique_for_overwrite<int32_t[]>(reader.indices());
  int64_t n = 0;
  BagEntries entries;
  for (int64_t b = 0, next = 0; b < reader.bags(); b = next) {
    next = reader.run_end(b, reader.bags());
    reader.read(b, next, true, entries);
    int64_t e = 0;
    for (int64_t bag = b; bag < next; ++bag) {
      for (; e < entries.ends[bag - b]; ++e) {
        const int32_t place = entries.places[e];
        keys[n++] = static_cast<Key>(entries.rows[e]) << kRowShift |
                    static_cast<Key>(place);
        bag_of[place] = static_cast<int32_t>(bag);
      }
    }
    if (counts != nullptr) {
      counts->insert(
          counts->end(),
          entries.counts.begin(),
          entries.counts.begin() + (next - b));
    }
  }
  reader.check_range();
  const int row_bits =
      rows > 1 ? std::bit_width(static_cast<Key>(rows - 1)) : 0;
  sort_by_row(keys, n, kRowShift, row_bits);

  RowGroups groups;
  groups.bags.resize(n);
  groups.places.resize(n);
  groups.rows.resize(n);
  groups.starts.resize(n + 1);
  int64_t touched = 0;
  for (int64_t k = 0; k < n; ++k) {
    const Key row = keys[k] >> kRowShift;
    groups.places[k] = place_of(keys[k]);
    groups.bags[k] = bag_of[place_of(keys[k])];
    // Each is written, and stays only if the next one is another row.
    groups.rows[touched] = static_cast<int64_t>(row);
    if (k == 0 || row != keys[k - 1] >> kRowShift) {
      groups.starts[touched] = k;
    }
    touched += k + 1 == n || row != keys[k + 1] >> kRowShift;
  }
  groups.rows.resize(touched);
  groups.starts.resize(touched + 1);
  groups.starts[touched] = n;
  return groups;
}

}  // namespace tessera::detail
