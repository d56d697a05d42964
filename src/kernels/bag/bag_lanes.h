// Rows of a table as vectors of the width that the machine has.
#pragma once

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/lanes.h"

namespace tessera::detail {

// float for half kinds, else T: what rows of T are added up in.
template <typename T>
using BagAcc = at::opmath_type<T>;

// Vectors of `Bytes` bytes of Acc, which is float or double.
template <typename Acc, int Bytes>
struct Lanes {
  static constexpr int64_t kCount = Bytes / sizeof(Acc);
  using Int = std::conditional_t<sizeof(Acc) == 4, int32_t, int64_t>;
  using Bits = std::conditional_t<sizeof(Acc) == 4, uint32_t, uint64_t>;
  typedef Acc Vec __attribute__((vector_size(Bytes)));
  typedef Int IntVec __attribute__((vector_size(Bytes)));
  typedef Bits BitsVec __attribute__((vector_size(Bytes)));
  // The same in memory, where nothing is said about alignment.
  typedef Acc LooseVec
      __attribute__((vector_size(Bytes), aligned(alignof(Acc)), may_alias));
  typedef Int LooseIntVec
      __attribute__((vector_size(Bytes), aligned(alignof(Int)), may_alias));
};

// Half as many bits: what half kinds are in memory.
template <int Bytes>
struct HalfLanes {
  typedef uint16_t LooseVec
      __attribute__((vector_size(Bytes / 2), aligned(2), may_alias));
};

// v = the elements from p on, in the type they are added up in.
template <int Bytes, typename T>
TESSERA_LANES_INLINE void load_lanes(
    const T* p, typename Lanes<BagAcc<T>, Bytes>::Vec& v) {
  using L = Lanes<BagAcc<T>, Bytes>;
  if constexpr (std::is_same_v<T, BagAcc<T>>) {
    v = *reinterpret_cast<const typename L::LooseVec*>(p);
  } else {
    using BitsVec = typename L::BitsVec;
    const BitsVec bits = __builtin_convertvector(
        *reinterpret_cast<const typename HalfLanes<Bytes>::LooseVec*>(p),
        BitsVec);
    if constexpr (std::is_same_v<T, c10::BFloat16>) {
      v = reinterpret_cast<typename L::Vec>(bits << 16);
    } else {
      // Exponent and mantissa moved to float's places are 2^112 too small, for
      // subnormal numbers too. What had the highest exponent stays inf or NaN.
      const BitsVec sign = (bits & 0x8000U) << 16;
      const BitsVec magnitude = (bits & 0x7fffU) << 13;
      const auto scaled =
          reinterpret_cast<typename L::Vec>(magnitude) * 0x1p112F;
      const auto special = reinterpret_cast<BitsVec>(magnitude >= 0x0f800000U);
      v = reinterpret_cast<typename L::Vec>(
          reinterpret_cast<BitsVec>(scaled) | (special & 0x7f800000U) | sign);
    }
  }
}

// The elements from p on = v, rounded once.
template <int Bytes, typename T, typename Acc>
TESSERA_LANES_INLINE void store_lanes(
    T* p, const typename Lanes<Acc, Bytes>::Vec& v) {
  using L = Lanes<Acc, Bytes>;
  if constexpr (std::is_same_v<T, Acc>) {
    *reinterpret_cast<typename L::LooseVec*>(p) = v;
  } else {
    for (int64_t i = 0; i < L::kCount; ++i) {
      p[i] = static_cast<T>(v[i]);
    }
  }
}

// v = the int32s from p on, as wide as Acc.
template <int Bytes, typename Acc>
TESSERA_LANES_INLINE void load_places(
    const int32_t* p, typename Lanes<Acc, Bytes>::IntVec& v) {
  using L = Lanes<Acc, Bytes>;
  if constexpr (sizeof(Acc) == sizeof(int32_t)) {
    v = *reinterpret_cast<const typename L::LooseIntVec*>(p);
  } else {
    for (int64_t i = 0; i < L::kCount; ++i) {
      v[i] = p[i];
    }
  }
}

// Rows are asked for ahead of time into the second cache, which can wait for
// many more lines at once than the first; from there they are read without
// another step, which would ask the page tables once more for each row.
constexpr int kSecondCache = 2;
constexpr int kFirstCache = 3;

// How many rows ahead.
struct Lookahead {
  static constexpr int64_t kMost = 128;

  explicit Lookahead(int64_t row_bytes)
      : rows(std::clamp<int64_t>(
            16384 / std::max<int64_t>(1, row_bytes), 4, kMost)) {}

  int64_t rows;
};

// The address of a column, which the compiler may not take apart: it would hold
// one sum of column and vector for each vector of a row, and find no registers
// for the rest.
template <typename T>
TESSERA_LANES_INLINE T* column_of(T* table, int64_t column) {
  T* first = table + column;
  asm("" : "+r"(first));
  return first;
}

// The row that is asked for while row `e` is read, from `table` on. It need not
// be a row of the table: nothing is read.
template <typename T>
struct RowAhead {
  TESSERA_LANES_INLINE RowAhead(
      const T* table,
      const int64_t* rows,
      int64_t e,
      int64_t stride,
      const Lookahead& ahead)
      : begin(address(table, rows[e + ahead.rows], stride)) {}

  uintptr_t begin;

  // Without a sign, so that it may be of any row.
  static TESSERA_LANES_INLINE uintptr_t
  address(const T* table, int64_t row, int64_t stride) {
    return reinterpret_cast<uintptr_t>(table) +
           static_cast<uintptr_t>(row) * static_cast<uintptr_t>(stride) *
               sizeof(T);
  }

  // Asks for its line that begins at element `i`, where lines do. To be called
  // behind the read of that element: lines of a row that are asked for all at
  // once, ahead of it, hold up the reads that follow. The compiler would gather
  // them there.
  TESSERA_LANES_INLINE void ask(int64_t i) const {
    constexpr int64_t kLine = 64 / sizeof(T);
    if (i % kLine == 0) {
      asm volatile("");
      const uintptr_t at = static_cast<uintptr_t>(i) * sizeof(T);
      __builtin_prefetch(
          // NOLINTNEXTLINE(performance-no-int-to-ptr)
          reinterpret_cast<const void*>(begin + at),
          0,
          kSecondCache);
    }
  }
};

// The rows of a part, in memory.
template <typename T>
struct BagTable {
  // Requires: columns one after the other; rows may lie anywhere.
  explicit BagTable(const at::Tensor& weight)
      : data(weight.const_data_ptr<T>()),
        rows(weight.size(0)),
        stride(weight.stride(0)),
        width(weight.size(1)),
        ahead(width * static_cast<int64_t>(sizeof(T))) {}

  const T* data;
  int64_t rows;
  int64_t stride;  // from row to row, in elements
  int64_t width;
  Lookahead ahead;

  // Whether it has such a row.
  TESSERA_LANES_INLINE bool has(int64_t row) const {
    return static_cast<uint64_t>(row) < static_cast<uint64_t>(rows);
  }

  // Asks for the first rows of a run, which no earlier row has asked for. Of
  // any numbers, as RowAhead.
  TESSERA_LANES_INLINE void prefetch_first(const int64_t* first) const {
    const uintptr_t bytes = static_cast<uintptr_t>(width) * sizeof(T);
    for (int64_t e = 0; e < ahead.rows; ++e) {
      const auto row = RowAhead<T>::address(data, first[e], stride);
      for (uintptr_t i = 0; i < bytes; i += 64) {
        // NOLINTNEXTLINE(performance-no-int-to-ptr)
        __builtin_prefetch(
            reinterpret_cast<const void*>(row + i), 0, kSecondCache);
      }
    }
  }
};

// Cuts `width` columns into blocks of 8, 4, 2 and 1 vectors, so that a block's
// accumulators stay in registers over a bag, and a rest of single columns:
// calls body.template block<N>(column) and body.rest(column, count).
template <int64_t Lane, typename Body>
TESSERA_LANES_INLINE void for_column_blocks(int64_t width, const Body& body) {
  int64_t c = 0;
  for (; width - c >= 8 * Lane; c += 8 * Lane) {
    body.template block<8>(c);
  }
  if (width - c >= 4 * Lane) {
    body.template block<4>(c);
    c += 4 * Lane;
  }
  if (width - c >= 2 * Lane) {
    body.template block<2>(c);
    c += 2 * Lane;
  }
  if (width - c >= Lane) {
    body.template block<1>(c);
    c += Lane;
  }
  if (c < width) {
    body.rest(c, width - c);
  }
}

}  // namespace tessera::detail
