// How the kernels of this folder read indices, and what they say of bad ones.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>

namespace tessera::detail {

// Rows stand anywhere in a table that no cache holds, so a pass prefetches the
// row that is wanted this many indices later.
inline constexpr int64_t kPrefetchRows = 12;

// Throws c10::TypeError, in the name of the public `function`, unless `indices`
// is int32 or int64.
void check_index_dtype(const char* function, const at::Tensor& indices);

// Throws c10::ValueError unless [first, first + held) is a part of [0, whole).
void check_held_range(
    const char* function, int64_t first, int64_t held, int64_t whole);

// Throws the c10::IndexError of a lookup in a table of `table_rows` rows.
[[noreturn]] void throw_outside_table(int64_t index, int64_t table_rows);

// The first of `indices` that is outside a table of `table_rows` rows.
// Requires: on the CPU, int32 or int64.
std::optional<int64_t> first_outside(
    const at::Tensor& indices, int64_t table_rows);

// Whether any of the n indices is outside a table of `table_rows` rows. For
// int32 and int64.
template <typename Index>
bool any_outside(const Index* indices, int64_t n, int64_t table_rows);

// Calls f(pointer) with the typed data of `indices`. Requires: contiguous, on
// the CPU, int32 or int64.
template <class F>
auto with_index_data(const at::Tensor& indices, F&& f) {
  return indices.scalar_type() == at::kInt
             ? f(indices.const_data_ptr<int32_t>())
             : f(indices.const_data_ptr<int64_t>());
}

// Whether `index` is in [0, size); one comparison.
inline bool is_inside(int64_t index, int64_t size) {
  return static_cast<uint64_t>(index) < static_cast<uint64_t>(size);
}

// `index - first`, which is inside a range if the index is; of indices far
// outside the table, whose difference would overflow, it is not.
inline int64_t offset_from(int64_t first, int64_t index) {
  return static_cast<int64_t>(
      static_cast<uint64_t>(index) - static_cast<uint64_t>(first));
}

// The first of the places that several threads report.
class FirstPlace {
 public:
  // Takes note of `place`. Safe to call from several threads.
  void report(int64_t place) {
    int64_t known = place_.load(std::memory_order_relaxed);
    while (place < known && !place_.compare_exchange_weak(
                                known, place, std::memory_order_relaxed)) {
    }
  }

  // Whether any was reported; get() is the first then.
  explicit operator bool() const { return get() != kNone; }
  int64_t get() const { return place_.load(std::memory_order_relaxed); }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> place_{kNone};
};

}  // namespace tessera::detail
