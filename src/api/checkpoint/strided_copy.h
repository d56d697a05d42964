// From a piece in a file to a box in memory: both row-major, neither need hold
// all of the other. What they share is a set of runs of bytes.
#pragma once

#include <cstdint>

#include "api/checkpoint/box.h"

namespace tessera::detail {

class StridedCopy {
 public:
  // `memory` holds `target`. Requires: the boxes have something in common.
  StridedCopy(
      const Box& piece, const Box& target, int64_t item_bytes, char* memory);

  // The bytes of the piece, from its start, between which the runs lie.
  int64_t begin() const { return first_source_; }
  int64_t end() const { return first_source_ + extents_[0]; }

  // Whether bytes [from, to) of the piece have a part of a run.
  bool touches(int64_t from, int64_t to) const;
  // Where bytes [from, to) of the piece go, if that is one place; otherwise
  // null.
  char* place_of(int64_t from, int64_t to) const;
  // Copies what bytes [from, to) of the piece, which are in `buffer`, have of
  // the runs.
  void copy(const char* buffer, int64_t from, int64_t to) const;

 private:
  struct Window {
    const char* buffer;
    int64_t from;
    int64_t to;
  };
  // The first and the last index + 1 of dimension `d` whose bytes, from
  // `source` on, meet [from, to).
  std::pair<int64_t, int64_t> met(
      int64_t d, int64_t source, int64_t from, int64_t to) const;
  void copy(const Window& window, int64_t d, int64_t source, char* place) const;
  bool touches(int64_t d, int64_t source, int64_t from, int64_t to) const;

  int64_t dims_ = 0;  // of which runs are counted
  Sizes counts_;
  Sizes source_strides_;
  Sizes place_strides_;
  // Bytes of the piece from the first to the last byte of an index of the
  // dimension before: extents_[dims_] is the length of a run.
  Sizes extents_;
  int64_t first_source_ = 0;
  char* first_place_ = nullptr;
};

}  // namespace tessera::detail
