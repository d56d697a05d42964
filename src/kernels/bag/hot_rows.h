// Rows that many entries ask for. A step of each entry would round such a row
// as often: the steps are added up beside the table, and the row takes their
// sum. Others have few entries, which step it directly: no sum has to be found,
// written and read again.
#pragma once

#include <ATen/core/Tensor.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/bag/bag_runs.h"

namespace tessera::detail {

// Which rows may have many entries. Immutable; threads share it.
class HotRows {
 public:
  // Looks at about one in four or five of `indices`, int32 or int64, and counts
  // by a hash: rows that have many are found, and seldom another.
  explicit HotRows(const at::Tensor& indices);

  bool any() const { return any_; }
  bool may_have(int64_t row) const { return counts_[slot(row)] >= kMany; }

 private:
  // Of those looked at; some 70 in all. After fewer roundings a row differs in
  // its last bits.
  static constexpr uint8_t kMany = 16;

  size_t slot(int64_t row) const {
    return static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15ULL >> shift_;
  }
  template <typename Index>
  void count(const at::Tensor& indices);

  std::vector<uint8_t> counts_;
  int shift_ = 0;
  bool any_ = false;
};

// The sums of one thread, whose rows begin at `first`.
template <typename T>
class HotSums {
 public:
  HotSums(const HotRows& hot, int64_t first, int64_t width)
      : hot_(hot), first_(first), width_(width) {
    if (hot.any()) {
      resize(1024);
    }
  }

  struct Table {
    T* data;
    int64_t stride;
    T rate;
  };

  // Finds, for each entry of a run, what it steps and how far: its row by the
  // rate, or the sum of its row by the gradient itself, as other strategies add
  // up gradients. Requires: some rows are hot.
  void find(const BagRun<T>& run, const Table& table) {
    const int64_t entries = run.entries();
    places_.resize(entries);
    scales_.resize(entries);
    for (int64_t e = 0; e < entries; ++e) {
      const int64_t row = run.rows[e];
      const T scale = run.scales != nullptr ? run.scales[e] : T(1);
      if (hot_.may_have(first_ + row)) {
        places_[e] = sum_of(row);
        scales_[e] = scale;
      } else {
        places_[e] = table.data + row * table.stride;
        scales_[e] = table.rate * scale;
      }
    }
  }
  // Of the run, until the next one.
  T* const* places() const { return places_.data(); }
  const T* scales() const { return scales_.data(); }

  // Steps the rows by their sums.
  void step(const Table& table) const {
    for (const Sum& sum : sums_) {
      for (int64_t c = 0; sum.steps != nullptr && c < width_; ++c) {
        table.data[sum.row * table.stride + c] += table.rate * sum.steps[c];
      }
    }
  }

 private:
  struct Sum {
    int64_t row = 0;
    T* steps = nullptr;
  };
  static constexpr int64_t kBlock = 64;

  // The sums are found by an open addressed table, at most half full.
  Sum& at_row(int64_t row) {
    size_t at = static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15ULL >> shift_;
    while (sums_[at].steps != nullptr && sums_[at].row != row) {
      at = (at + 1) & (sums_.size() - 1);
    }
    return sums_[at];
  }

  T* sum_of(int64_t row) {
    Sum& known = at_row(row);
    if (known.steps != nullptr) {
      return known.steps;
    }
    if (count_ % kBlock == 0) {
      blocks_.push_back(std::make_unique<T[]>(kBlock * width_));
    }
    T* steps = blocks_.back().get() + count_++ % kBlock * width_;
    known = {row, steps};
    if (2 * count_ > static_cast<int64_t>(sums_.size())) {
      resize(4 * sums_.size());
    }
    return steps;
  }

  void resize(size_t size) {
    const auto old = std::exchange(sums_, std::vector<Sum>(size));
    shift_ = 64 - std::countr_zero(size);
    for (const Sum& sum : old) {
      if (sum.steps != nullptr) {
        at_row(sum.row) = sum;
      }
    }
  }

  const HotRows& hot_;
  int64_t first_;
  int64_t width_;
  std::vector<Sum> sums_;
  int shift_ = 0;
  int64_t count_ = 0;
  std::vector<std::unique_ptr<T[]>> blocks_;  // of kBlock sums each
  std::vector<T*> places_;
  std::vector<T> scales_;
};

}  // namespace tessera::detail
