#include "kernels/lookup/embedding_index.h"
#include "tessera/language.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace tessera::detail {

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
        using Index = std::decay_t<decltype(*index)>;
        const auto last = last_index<Index>(table_rows);
        std::make_unsigned_t<Index> outside = 0;
        for (int64_t i = 0; i < n; ++i) {
          outside |= outside_bit(index[i], last);
        }
        if (!is_outside(outside)) {
          return std::nullopt;
        }
        return *std::find_if(index, index + n, [&](int64_t i) {
          return !is_inside(i, table_rows);
        });
      });
}

}  // namespace tessera::detail
