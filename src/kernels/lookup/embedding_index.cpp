#include "kernels/lookup/embedding_index.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/lanes.h"
#include "tessera/language.h"

namespace tessera::detail {

namespace {

// Whether any of the indices is not 0 to `last`.
template <typename Index>
struct AnyOutside {
  using Bits = std::make_unsigned_t<Index>;

  const Index* indices;
  int64_t n;
  Index last;
  Bits* found;

  // In one pass without branches or comparisons, which every machine has
  // vectors for: what is outside has the highest bit set.
  template <int Bytes>
  TESSERA_LANES_INLINE void run() const {
    const auto most = static_cast<Bits>(last);
    Bits bits = 0;
    for (int64_t i = 0; i < n; ++i) {
      const auto index = static_cast<Bits>(indices[i]);
      bits |= index | (most - index);
    }
    *found = bits;
  }
};

}  // namespace

template <typename Index>
bool any_outside(const Index* indices, int64_t n, int64_t table_rows) {
  // As far as indices of the type can name it; -1 of an empty table.
  const auto last = static_cast<Index>(
      std::min<int64_t>(table_rows - 1, std::numeric_limits<Index>::max()));
  std::make_unsigned_t<Index> found = 0;
  run_on_lanes(AnyOutside<Index>{indices, n, last, &found});
  return static_cast<Index>(found) < 0;
}

template bool any_outside(const int32_t*, int64_t, int64_t);
template bool any_outside(const int64_t*, int64_t, int64_t);

void check_index_dtype(const char* function, const at::Tensor& indices) {
  const at::ScalarType dtype = indices.scalar_type();
  TORCH_CHECK_TYPE(
      dtype == at::kLong || dtype == at::kInt,
      "[",
      function,
      "] expected int64 or int32 indices but got ",
      dtype,
      "; convert them with ",
      spell("to(torch::kLong)"));
}

void check_held_range(
    const char* function, int64_t first, int64_t held, int64_t whole) {
  TORCH_CHECK_VALUE(
      first >= 0 && held >= 0 && first <= whole - held,
      "[",
      function,
      "] expected a part of [0, ",
      whole,
      ") but got ",
      held,
      " places from ",
      first,
      " on");
}

void throw_outside_table(int64_t index, int64_t table_rows) {
  TORCH_CHECK_INDEX(
      table_rows > 0,
      "[embedding] index ",
      index,
      " is outside the table of 0 rows; no index is valid");
  TORCH_CHECK_INDEX(
      false,
      "[embedding] index ",
      index,
      " is outside the table of ",
      table_rows,
      " rows; expected 0 to ",
      table_rows - 1);
}

std::optional<int64_t> first_outside(
    const at::Tensor& indices, int64_t table_rows) {
  const auto ordered = indices.contiguous();
  return with_index_data(
      ordered, [&](const auto* index) -> std::optional<int64_t> {
        const int64_t n = ordered.numel();
        if (!any_outside(index, n, table_rows)) {
          return std::nullopt;
        }
        return *std::find_if(index, index + n, [&](int64_t i) {
          return !is_inside(i, table_rows);
        });
      });
}

}  // namespace tessera::detail
