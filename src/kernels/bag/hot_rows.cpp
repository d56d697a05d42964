#include "kernels/bag/hot_rows.h"

#include <algorithm>
#include <bit>

namespace tessera::detail {

HotRows::HotRows(const at::Tensor& indices) {
  if (indices.numel() < kMany) {
    return;
  }
  // As many counters as entries that are looked at: few rows share one.
  constexpr uint64_t kFewest = 4096;
  const uint64_t counters =
      std::bit_ceil(std::max<uint64_t>(kFewest, indices.numel() / 4));
  counts_.resize(counters);
  shift_ = 64 - std::countr_zero(counters);
  const at::Tensor dense = indices.contiguous();
  if (dense.scalar_type() == at::kInt) {
    count<int32_t>(dense);
  } else {
    count<int64_t>(dense);
  }
}

template <typename Index>
void HotRows::count(const at::Tensor& indices) {
  const auto* rows = indices.const_data_ptr<Index>();
  bool any = false;
  // Steps of 1 to 8 in no order, so that none fits the length of bags.
  uint64_t random = 1;
  for (int64_t i = 0; i < indices.numel();
       i += 1 + static_cast<int64_t>(random >> 61)) {
    random = random * 0x5851F42D4C957F2DULL + 1;
    uint8_t& count = counts_[slot(rows[i])];
    count += count < kMany ? 1 : 0;
    any |= count == kMany;
  }
  any_ = any;
}

}  // namespace tessera::detail
