// Reads bags on the CPU: which entries of each bag are rows of this part.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/bag/bag.h"

namespace tessera::detail {

// The boundaries of the bags in `indices`, bags + 1 of them, as a contiguous
// tensor of int64: the offsets themselves if they are that. Requires offsets on
// the CPU. Throws c10::TypeError unless indices and offsets are int32 or int64,
// c10::ValueError unless both have one dimension and offsets start at 0, never
// decrease and end within `indices`.
at::Tensor bag_bounds(const BagIndices& input);

// Throws as bag_bounds for all but the values of offsets, so that it does not
// read them: dtypes, dimensions, and how many there are.
void check_bag_lists(const BagIndices& input);

// Throws the c10::ValueError of an offset that is followed by a smaller one, or
// by one beyond the `indices` indices; or of a first offset that is not 0.
[[noreturn]] void throw_bad_offsets(
    int64_t offset, int64_t next, int64_t indices);

// Throws the c10::IndexError of an index that is outside a table.
[[noreturn]] void throw_outside_bag_table(int64_t index, int64_t total);

// The entries of a run of bags that this part holds, bag after bag. Room for
// one run after the other: what lies behind is of earlier ones.
struct BagEntries {
  int64_t held = 0;               // how many there are
  const int64_t* rows = nullptr;  // rows of the part
  std::vector<int64_t> row_room;  // what `rows` points to, or to the indices
  std::vector<int32_t> places;    // where they stand in `indices`
  std::vector<int64_t> ends;      // per bag: where its entries end in `rows`
  std::vector<int64_t> counts;    // per bag: its entries anywhere, but padding
  std::vector<int32_t> firsts;    // per bag: place of the first such, if any
};

// Reads bags for one part. Threads may share it.
class BagReader {
 public:
  // Who sees to it that indices are rows of the table: the reader, in a pass
  // over them, or whoever follows them, as it goes.
  enum class Checks { kHere, kByFollower };

  // Requires: the part's `rows` rows lie within the table. Throws as
  // bag_bounds.
  BagReader(
      const BagIndices& input,
      int64_t rows,
      const BagPart& part,
      Checks checks = Checks::kHere);

  int64_t bags() const { return bags_; }
  int64_t indices() const { return indices_.numel(); }

  // One past the last bag of the run that starts at `begin`, at most `end`: as
  // many bags as keep their entries in the nearest cache, and at least one.
  int64_t run_end(int64_t begin, int64_t end) const;

  // Overwrites `entries` with those of bags [begin, end); `places` and `firsts`
  // only if asked for. Behind the last row stand Lookahead::kMost more, which
  // may be prefetched but are not entries. Remembers whether an index is
  // outside the table; such entries are left out, unless their follower checks
  // them. `entries` may point to the reader's indices, and live no longer than
  // they.
  void read(
      int64_t begin, int64_t end, bool with_places, BagEntries& entries) const;

  // Reads bags [begin, end) run after run, each into the same memory, and calls
  // body(first bag, one past its last, entries) for each.
  template <typename Body>
  void each_run(
      int64_t begin, int64_t end, bool with_places, const Body& body) const {
    BagEntries entries;
    for (int64_t b = begin, next = 0; b < end; b = next) {
      next = run_end(b, end);
      read(b, next, with_places, entries);
      body(b, next, std::as_const(entries));
    }
  }

  // The same for all bags, on as many threads as rows of `width` are worth.
  template <typename Body>
  void parallel_runs(int64_t width, bool with_places, const Body& body) const {
    at::parallel_for(0, bags(), grain(width), [&](int64_t begin, int64_t end) {
      each_run(begin, end, with_places, body);
    });
  }

  // To be called by a follower that met an index outside the table.
  void found_outside() const { outside_ = true; }

  // Throws the c10::IndexError of the first index outside the table, if any
  // that was read is. Not for use while others read.
  void check_range() const;

  // How many bags make up enough work for a thread, with rows of `width`.
  int64_t grain(int64_t width) const;

 private:
  template <typename Index>
  void read_all(int64_t begin, int64_t end, BagEntries& entries) const;
  template <typename Index, bool Places>
  void read_some(int64_t begin, int64_t end, BagEntries& entries) const;
  template <typename Index>
  void read_as(
      int64_t begin, int64_t end, bool with_places, BagEntries& entries) const;

  at::Tensor indices_;
  at::Tensor bound_list_;
  const int64_t* bounds_;  // of bound_list_
  int64_t bags_;
  int64_t rows_;
  BagPart part_;
  int64_t padding_;
  bool checks_;
  mutable std::atomic<bool> outside_{false};
};

// The counts that `input` brings for means, or nullptr if those that are read
// will do. Throws c10::ValueError unless they are contiguous [bags] int64.
const int64_t* mean_counts(const BagIndices& input, int64_t bags);

}  // namespace tessera::detail
