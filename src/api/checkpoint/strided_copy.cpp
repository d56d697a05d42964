#include "api/checkpoint/strided_copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tessera::detail {

namespace {

Sizes byte_strides(SizesRef sizes, int64_t item_bytes) {
  Sizes strides(sizes.size());
  int64_t stride = item_bytes;
  for (auto d = static_cast<int64_t>(sizes.size()) - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= sizes[d];
  }
  return strides;
}

// Runs of as many bytes, each.
struct Runs {
  int64_t count;
  int64_t bytes;
  const char* from;
  int64_t from_stride;
  char* to;
  int64_t to_stride;
};

void copy_runs(Runs runs) {
  for (; runs.count > 0; --runs.count) {
    std::memcpy(runs.to, runs.from, runs.bytes);
    runs.from += runs.from_stride;
    runs.to += runs.to_stride;
  }
}

}  // namespace

StridedCopy::StridedCopy(
    const Box& piece, const Box& target, int64_t item_bytes, char* memory)
    : first_place_(memory) {
  const Box shared = intersection(piece, target);
  source_strides_ = byte_strides(piece.size, item_bytes);
  place_strides_ = byte_strides(target.size, item_bytes);
  for (int64_t d = 0; d < shared.dim(); ++d) {
    first_source_ += (shared.begin[d] - piece.begin[d]) * source_strides_[d];
    first_place_ += (shared.begin[d] - target.begin[d]) * place_strides_[d];
  }
  // Dimensions that both have whole are part of a run, and the one before.
  int64_t run = item_bytes;
  dims_ = shared.dim();
  while (dims_ > 0) {
    --dims_;
    run *= shared.size[dims_];
    if (shared.size[dims_] != piece.size[dims_] ||
        shared.size[dims_] != target.size[dims_]) {
      break;
    }
  }
  counts_ = shared.size;
  extents_.assign(dims_ + 1, run);
  for (int64_t d = dims_ - 1; d >= 0; --d) {
    extents_[d] = extents_[d + 1] + (counts_[d] - 1) * source_strides_[d];
  }
}

std::pair<int64_t, int64_t> StridedCopy::met(
    int64_t d, int64_t source, int64_t from, int64_t to) const {
  const int64_t stride = source_strides_[d];
  // The bytes of index i are [source + i * stride, ... + extent).
  const int64_t before = from - source - extents_[d + 1];
  const int64_t first = before < 0 ? 0 : before / stride + 1;
  const int64_t last = to <= source ? 0 : (to - source - 1) / stride + 1;
  return {first, std::min(last, counts_[d])};
}

bool StridedCopy::touches(
    int64_t d, int64_t source, int64_t from, int64_t to) const {
  if (d == dims_) return source < to && source + extents_[d] > from;
  const auto [first, last] = met(d, source, from, to);
  // All but the first and the last lie inside.
  if (last - first > 2) return true;
  for (int64_t i = first; i < last; ++i) {
    if (touches(d + 1, source + i * source_strides_[d], from, to)) return true;
  }
  return false;
}

bool StridedCopy::touches(int64_t from, int64_t to) const {
  return touches(0, first_source_, from, to);
}

char* StridedCopy::place_of(int64_t from, int64_t to) const {
  int64_t source = first_source_;
  char* place = first_place_;
  for (int64_t d = 0; d < dims_; ++d) {
    const auto [first, last] = met(d, source, from, to);
    if (last - first != 1) return nullptr;
    source += first * source_strides_[d];
    place += first * place_strides_[d];
  }
  if (from < source || to > source + extents_[dims_]) return nullptr;
  return place + (from - source);
}

void StridedCopy::copy(
    const Window& window, int64_t d, int64_t source, char* place) const {
  if (d == dims_) {
    const int64_t from = std::max(source, window.from);
    const int64_t to = std::min(source + extents_[d], window.to);
    if (from >= to) return;
    std::memcpy(
        place + (from - source),
        window.buffer + (from - window.from),
        to - from);
    return;
  }
  const auto [first, last] = met(d, source, window.from, window.to);
  if (d + 1 == dims_ && last - first > 2) {
    // All but the first and the last lie inside.
    copy(
        window,
        d + 1,
        source + first * source_strides_[d],
        place + first * place_strides_[d]);
    copy_runs(
        {.count = last - first - 2,
         .bytes = extents_[dims_],
         .from = window.buffer +
                 (source + (first + 1) * source_strides_[d] - window.from),
         .from_stride = source_strides_[d],
         .to = place + (first + 1) * place_strides_[d],
         .to_stride = place_strides_[d]});
    copy(
        window,
        d + 1,
        source + (last - 1) * source_strides_[d],
        place + (last - 1) * place_strides_[d]);
    return;
  }
  for (int64_t i = first; i < last; ++i) {
    copy(
        window,
        d + 1,
        source + i * source_strides_[d],
        place + i * place_strides_[d]);
  }
}

void StridedCopy::copy(const char* buffer, int64_t from, int64_t to) const {
  copy({buffer, from, to}, 0, first_source_, first_place_);
}

}  // namespace tessera::detail
