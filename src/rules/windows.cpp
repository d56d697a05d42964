#include "rules/windows.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "rules/rule_table.h"

namespace tessera::detail {

int64_t along(const CheckedSizes& list, int64_t dim) {
  return list.length() == 1 ? list[0] : list[dim];
}

void check_window(const OpCall& call, const Window& window) {
  TORCH_CHECK(
      window.stride > 0 && window.dilation > 0 && window.padding >= 0,
      "[",
      op_display_name(call.schema()),
      "] expected strides and dilations greater than zero and no negative "
      "padding, but got stride ",
      window.stride,
      ", dilation ",
      window.dilation,
      " and padding ",
      window.padding);
}

int64_t window_count(
    const OpCall& call, int64_t size, const Window& window, bool ceil_mode) {
  check_window(call, window);
  TORCH_CHECK(
      window.kernel > 0,
      "[",
      op_display_name(call.schema()),
      "] expected kernel sizes greater than zero, but got ",
      window.kernel);
  const int64_t reach = window.dilation * (window.kernel - 1) + 1;
  const int64_t rounding = ceil_mode ? window.stride - 1 : 0;
  const int64_t room = size + 2 * window.padding - reach + rounding;
  if (room < 0) {
    return 0;
  }
  const int64_t count = room / window.stride + 1;
  // The last window starts inside the input or its left padding.
  const bool outside =
      ceil_mode && (count - 1) * window.stride >= size + window.padding;
  return outside ? count - 1 : count;
}

}  // namespace tessera::detail
