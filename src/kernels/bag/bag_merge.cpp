// Maxima of several parts put together.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include "kernels/bag/bag.h"

namespace tessera::detail {

namespace {

// One pass: composed of ATen's ops it takes longer than a lookup's rest. No
// branches: nothing foretells whose maximum is the larger.
template <typename T>
void merge_cpu(const BagMax& all, const at::Tensor& bags, const BagMax& part) {
  const int64_t width = all.values.size(1);
  const auto* bag = bags.const_data_ptr<int64_t>();
  const auto* value = part.values.const_data_ptr<T>();
  const auto* place = part.argmax.const_data_ptr<int32_t>();
  auto* const values = all.values.mutable_data_ptr<T>();
  auto* const places = all.argmax.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i < bags.size(0); ++i, value += width, place += width) {
    T* const best = values + bag[i] * width;
    int32_t* const best_place = places + bag[i] * width;
    for (int64_t d = 0; d < width; ++d) {
      const auto mine = static_cast<at::opmath_type<T>>(best[d]);
      const auto theirs = static_cast<at::opmath_type<T>>(value[d]);
      // A NaN is the bag's first entry, so nobody beats it.
      const bool takes =
          (place[d] >= 0) &
          ((best_place[d] < 0) | (theirs > mine) | (theirs != theirs) |
           ((theirs == mine) & (place[d] < best_place[d])));
      best[d] = takes ? value[d] : best[d];
      best_place[d] = takes ? place[d] : best_place[d];
    }
  }
}

void merge_any_device(
    const BagMax& all, const at::Tensor& bags, const BagMax& part) {
  const auto values = all.values.index_select(0, bags);
  const auto places = all.argmax.index_select(0, bags);
  const auto stronger = part.values.gt(values).logical_and(values.eq(values));
  const auto earlier =
      part.values.eq(values).logical_and(part.argmax.lt(places));
  const auto takes = stronger.logical_or(earlier)
                         .logical_or(places.lt(0))
                         .logical_or(part.values.ne(part.values))
                         .logical_and(part.argmax.ge(0));
  all.values.index_copy_(0, bags, at::where(takes, part.values, values));
  all.argmax.index_copy_(0, bags, at::where(takes, part.argmax, places));
}

}  // namespace

void merge_bag_max_(
    const BagMax& all, const at::Tensor& bags, const BagMax& part) {
  TORCH_INTERNAL_ASSERT(
      part.argmax.scalar_type() == at::kInt &&
      bags.size(0) == part.values.size(0));
  if (bags.size(0) == 0) {
    return;
  }
  if (!all.values.is_cpu()) {
    merge_any_device(all, bags, part);
    return;
  }
  TORCH_INTERNAL_ASSERT(
      all.values.is_contiguous() && all.argmax.is_contiguous() &&
      part.values.is_contiguous() && part.argmax.is_contiguous());
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, all.values.scalar_type(), "merge_maxima", [&] {
        merge_cpu<scalar_t>(all, bags, part);
      });
}

BagMax merge_bag_max(at::ArrayRef<BagMax> parts) {
  TORCH_INTERNAL_ASSERT(!parts.empty());
  const auto copy = [](const at::Tensor& tensor) {
    return tensor.clone(at::MemoryFormat::Contiguous);
  };
  const BagMax all{copy(parts[0].values), copy(parts[0].argmax)};
  const auto every =
      at::arange(all.values.size(0), all.argmax.options().dtype(at::kLong));
  for (const BagMax& part : parts.slice(1)) {
    merge_bag_max_(
        all, every, {part.values.contiguous(), part.argmax.contiguous()});
  }
  all.values.masked_fill_(all.argmax.lt(0), 0);
  return all;
}

}  // namespace tessera::detail
