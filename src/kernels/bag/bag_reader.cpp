#include "kernels/bag/bag_reader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "kernels/bag/bag_lanes.h"
#include "kernels/lookup/embedding_index.h"

namespace tessera::detail {

namespace {

void check_integers(const char* name, const at::Tensor& t) {
  TORCH_CHECK_TYPE(
      t.scalar_type() == at::kInt || t.scalar_type() == at::kLong,
      "[embedding_bag] ",
      name,
      " must be int32 or int64, not ",
      t.scalar_type());
  TORCH_CHECK_VALUE(
      t.dim() == 1,
      "[embedding_bag] ",
      name,
      " must have 1 dimension, not ",
      t.dim());
}

// Never shrinks: a run after the first writes no zeros that it overwrites.
template <typename T>
void grow(std::vector<T>& v, int64_t size) {
  if (static_cast<int64_t>(v.size()) < size) {
    v.resize(size);
  }
}

// Room for n rows and those to look ahead to, which `rows` points to. One more
// than n, since each entry is written before it is known to stay.
int64_t* room_for(int64_t n, BagEntries& entries) {
  grow(entries.row_room, n + 1 + Lookahead::kMost);
  entries.rows = entries.row_room.data();
  return entries.row_room.data();
}

// Those to look ahead to, where there are no others.
void repeat_last(BagEntries& entries) {
  const int64_t held = entries.held;
  std::fill_n(
      entries.row_room.begin() + held,
      Lookahead::kMost,
      held > 0 ? entries.row_room[held - 1] : 0);
}

}  // namespace

void check_bag_lists(const BagIndices& input) {
  check_integers("indices", input.indices);
  check_integers("offsets", input.offsets);
  const int64_t n = input.indices.numel();
  TORCH_CHECK_VALUE(
      n <= std::numeric_limits<int32_t>::max() &&
          input.offsets.numel() <= std::numeric_limits<int32_t>::max(),
      "[embedding_bag] at most 2147483647 indices and offsets are supported, "
      "but there are ",
      n,
      " and ",
      input.offsets.numel());
  TORCH_CHECK_VALUE(
      !input.include_last_offset || input.offsets.numel() > 0,
      "[embedding_bag] include_last_offset needs at least 1 offset, the end of "
      "the last bag, but offsets is empty");
}

void throw_bad_offsets(int64_t offset, int64_t next, int64_t indices) {
  TORCH_CHECK_VALUE(
      offset > next || next > indices,
      "[embedding_bag] offsets must start at 0, not ",
      offset);
  TORCH_CHECK_VALUE(
      false,
      "[embedding_bag] offsets must not decrease and not exceed the number of "
      "indices, ",
      indices,
      ", but ",
      offset,
      " is followed by ",
      next);
  std::abort();  // not reached
}

at::Tensor bag_bounds(const BagIndices& input) {
  check_bag_lists(input);
  const int64_t n = input.indices.numel();
  const int64_t given = input.offsets.numel();
  if (given == 0) {
    // No bags; indices that belong to nobody are not read, as in ATen.
    return at::zeros({1}, at::kLong);
  }
  at::Tensor bounds = input.offsets.to(at::kLong).contiguous();
  if (!input.include_last_offset) {
    const auto* const begin = bounds.const_data_ptr<int64_t>();
    at::Tensor with_end = at::empty({given + 1}, at::kLong);
    auto* const end =
        std::copy_n(begin, given, with_end.mutable_data_ptr<int64_t>());
    *end = n;
    bounds = std::move(with_end);
  }
  const auto* const bound = bounds.const_data_ptr<int64_t>();
  TORCH_CHECK_VALUE(
      bound[0] == 0, "[embedding_bag] offsets must start at 0, not ", bound[0]);
  // Without branches, so that it is done in vectors; then who it was.
  const int64_t bags = bounds.numel() - 1;
  auto bad = static_cast<uint64_t>(n - bound[bags]);
  for (int64_t b = 0; b < bags; ++b) {
    bad |=
        static_cast<uint64_t>(bound[b + 1]) - static_cast<uint64_t>(bound[b]);
  }
  for (int64_t b = 0; static_cast<int64_t>(bad) < 0 && b < bags; ++b) {
    if (bound[b] > bound[b + 1] || bound[b + 1] > n) {
      throw_bad_offsets(bound[b], bound[b + 1], n);
    }
  }
  return bounds;
}

void throw_outside_bag_table(int64_t index, int64_t total) {
  TORCH_CHECK_INDEX(
      total > 0,
      "[embedding_bag] index ",
      index,
      " is outside the table of 0 rows; expected no index");
  TORCH_CHECK_INDEX(
      false,
      "[embedding_bag] index ",
      index,
      " is outside the table of ",
      total,
      " rows; expected 0 to ",
      total - 1);
  std::abort();  // not reached
}

BagReader::BagReader(
    const BagIndices& input, int64_t rows, const BagPart& part, Checks checks)
    : indices_(input.indices),
      bound_list_(bag_bounds(input)),
      bounds_(bound_list_.const_data_ptr<int64_t>()),
      bags_(bound_list_.numel() - 1),
      rows_(rows),
      part_(part),
      padding_(input.padding_idx),
      checks_(checks == Checks::kHere && !input.in_range) {
  TORCH_INTERNAL_ASSERT(
      part.first >= 0 && rows >= 0 && part.first + rows <= part.total,
      "rows ",
      part.first,
      " + ",
      rows,
      " of a table of ",
      part.total);
  indices_ = indices_.contiguous();
}

int64_t BagReader::run_end(int64_t begin, int64_t end) const {
  constexpr int64_t kEntries = 8192;
  constexpr int64_t kBags = 1024;
  const auto* const first = bounds_ + begin;
  const auto* const last = bounds_ + std::min(end, begin + kBags);
  const auto* const fit =
      std::upper_bound(first + 1, last + 1, *first + kEntries) - 1;
  return std::max<int64_t>(begin + 1, fit - bounds_);
}

// Where all rows are here and nothing pads, each index is an entry, and those
// that follow the run are what to look ahead to.
template <typename Index>
void BagReader::read_all(
    int64_t begin, int64_t end, BagEntries& entries) const {
  const int64_t first = bounds_[begin];
  const int64_t n = bounds_[end] - first;
  const int64_t seen = std::min(n + Lookahead::kMost, bounds_[bags_] - first);
  const auto* indices = indices_.const_data_ptr<Index>() + first;
  for (int64_t b = begin; b < end; ++b) {
    entries.ends[b - begin] = bounds_[b + 1] - first;
    entries.counts[b - begin] = bounds_[b + 1] - bounds_[b];
  }
  entries.held = n;
  if (checks_ && any_outside(indices, seen, rows_)) {
    // Nobody may follow these. The result will not be seen.
    outside_ = true;
    entries.held = 0;
    std::fill_n(entries.ends.begin(), end - begin, 0);
  }
  if constexpr (std::is_same_v<Index, int64_t>) {
    if (seen == n + Lookahead::kMost) {
      entries.rows = indices;
      return;
    }
  }
  std::copy_n(indices, n, room_for(n, entries));
  repeat_last(entries);
}

template <typename Index, bool Places>
void BagReader::read_some(
    int64_t begin, int64_t end, BagEntries& entries) const {
  const auto* indices = indices_.const_data_ptr<Index>();
  const auto rows = static_cast<uint64_t>(rows_);
  const auto total = static_cast<uint64_t>(part_.total);
  const int64_t shift = part_.first;
  const int64_t padding = padding_;
  int64_t* out_rows = room_for(bounds_[end] - bounds_[begin], entries);
  int32_t* out_places = entries.places.data();
  int64_t held = 0;
  bool outside = false;
  for (int64_t b = begin; b < end; ++b) {
    const auto first = static_cast<int32_t>(bounds_[b]);
    const auto last = static_cast<int32_t>(bounds_[b + 1]);
    int64_t pads = 0;
    int32_t lead = first;
    // Without branches: whether a row is here is a coin toss.
    for (int32_t place = first; place < last; ++place) {
      const auto index = static_cast<int64_t>(indices[place]);
      const int64_t row = index - shift;
      const bool pad = index == padding;
      outside |= static_cast<uint64_t>(index) >= total;
      pads += pad;
      out_rows[held] = row;
      if constexpr (Places) {
        out_places[held] = place;
        lead += static_cast<int32_t>(pad & (lead == place));
      }
      held += static_cast<int64_t>((static_cast<uint64_t>(row) < rows) & !pad);
    }
    entries.ends[b - begin] = held;
    entries.counts[b - begin] = last - first - pads;
    if constexpr (Places) {
      entries.firsts[b - begin] = lead;
    }
  }
  entries.held = held;
  repeat_last(entries);
  if (outside) {
    outside_ = true;
  }
}

template <typename Index>
void BagReader::read_as(
    int64_t begin, int64_t end, bool with_places, BagEntries& entries) const {
  if (with_places) {
    read_some<Index, true>(begin, end, entries);
  } else if (rows_ == part_.total && padding_ < 0) {
    read_all<Index>(begin, end, entries);
  } else {
    read_some<Index, false>(begin, end, entries);
  }
}

void BagReader::read(
    int64_t begin, int64_t end, bool with_places, BagEntries& entries) const {
  const int64_t n = bounds_[end] - bounds_[begin];
  grow(entries.places, with_places ? n + 1 : 0);
  grow(entries.ends, end - begin);
  grow(entries.counts, end - begin);
  grow(entries.firsts, with_places ? end - begin : 0);
  if (indices_.scalar_type() == at::kInt) {
    read_as<int32_t>(begin, end, with_places, entries);
  } else {
    read_as<int64_t>(begin, end, with_places, entries);
  }
}

void BagReader::check_range() const {
  if (!outside_) {
    return;
  }
  const at::Tensor all = indices_.to(at::kLong);
  const auto* index = all.const_data_ptr<int64_t>();
  const int64_t* bad =
      std::find_if(index, index + bounds_[bags_], [&](int64_t i) {
        return i < 0 || i >= part_.total;
      });
  throw_outside_bag_table(*bad, part_.total);
}

int64_t BagReader::grain(int64_t width) const {
  constexpr int64_t kElements = 1 << 15;
  const int64_t elements = std::max<int64_t>(
      1, (bounds_[bags_] + bags()) * std::max(width, int64_t{8}));
  return std::max<int64_t>(1, bags() * kElements / elements);
}

const int64_t* mean_counts(const BagIndices& input, int64_t bags) {
  if (!input.counts.has_value()) {
    return nullptr;
  }
  TORCH_CHECK_VALUE(
      input.counts->scalar_type() == at::kLong &&
          input.counts->is_contiguous() &&
          input.counts->sizes() == at::IntArrayRef{bags},
      "[embedding_bag] counts must be int64, contiguous and of size [",
      bags,
      "], not ",
      input.counts->scalar_type(),
      " ",
      input.counts->sizes());
  return input.counts->const_data_ptr<int64_t>();
}

}  // namespace tessera::detail
