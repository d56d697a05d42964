#include "tessera/checked_sizes.h"

#include <c10/util/StringUtil.h>

#include <stdexcept>

namespace tessera {

CheckedSizes::CheckedSizes(int64_t count, int64_t number) {
  if (count < 0) {
    throw_missing(count);
  }
  assign(count, number);
}

CheckedSizes CheckedSizes::slice(int64_t first, int64_t count) const {
  if (first < 0 || count < 0 || count > length() - first) {
    throw_missing(count < 0 ? count : first + count - 1);
  }
  return Sizes(begin() + first, begin() + first + count);
}

void CheckedSizes::throw_missing(int64_t index) const {
  throw std::out_of_range(c10::str(
      "expected more dimensions or a longer list than ",
      SizesRef(*this),
      ", which has no element ",
      index));
}

}  // namespace tessera
