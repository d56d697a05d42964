#include "kernels/bag/bag_groups.h"

#include <c10/util/Exception.h>

#include <array>
#include <bit>
#include <memory>
#include <utility>

namespace tessera::detail {

namespace {

// A row and, below it, the place of an entry.
using Key = uint64_t;

constexpr int kRowShift = 32;
constexpr int kMostDigitBits = 11;

// Room that is not written before it is used.
template <typename T>
using Room = std::unique_ptr<T[]>;

int32_t place_of(Key key) { return static_cast<int32_t>(key & 0xffffffffU); }

// Sorts n keys by row and leaves entries of a row in order, digit after digit.
void sort_by_row(Room<Key>& keys, int64_t n, int64_t rows) {
  const int bits = rows > 1 ? std::bit_width(static_cast<Key>(rows - 1)) : 0;
  const int passes = (bits + kMostDigitBits - 1) / kMostDigitBits;
  if (passes == 0) {
    return;
  }
  const int digit_bits = (bits + passes - 1) / passes;
  const Key mask = (Key{1} << digit_bits) - 1;
  auto other = std::make_unique_for_overwrite<Key[]>(n);
  std::array<uint32_t, 1 << kMostDigitBits> next{};
  for (int pass = 0; pass < passes; ++pass) {
    const int shift = kRowShift + pass * digit_bits;
    next.fill(0);
    for (int64_t k = 0; k < n; ++k) {
      ++next[(keys[k] >> shift) & mask];
    }
    uint32_t sum = 0;
    for (uint32_t& count : next) {
      sum += std::exchange(count, sum);
    }
    for (int64_t k = 0; k < n; ++k) {
      other[next[(keys[k] >> shift) & mask]++] = keys[k];
    }
    keys.swap(other);
  }
}

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
  sort_by_row(keys, n, rows);

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
