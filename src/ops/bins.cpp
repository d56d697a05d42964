// Counts of values. Where the bounds or the number of bins follow from the
// values, they are found first, over all ranks.
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>

#include <algorithm>

#include "dispatch/run_by_rule.h"
#include "ops/all_ops.h"

namespace tessera::detail {
namespace {

at::Tensor histc(
    const at::Tensor& self,
    int64_t bins,
    const at::Scalar& min,
    const at::Scalar& max) {
  static const OpInfo& op = aten_op("histc");
  double low = min.toDouble();
  double high = max.toDouble();
  if (low == high && self.numel() > 0) {
    low = at::min(self).item().toDouble();
    high = at::max(self).item().toDouble();
  }
  if (low == high) {
    low -= 1;
    high += 1;
  }
  return run_by_rule(op, self, bins, at::Scalar(low), at::Scalar(high))[0]
      .toTensor();
}

at::Tensor bincount(
    const at::Tensor& self,
    const std::optional<at::Tensor>& weights,
    c10::SymInt minlength) {
  static const OpInfo& op = aten_op("bincount");
  int64_t length = minlength.guard_int(__FILE__, __LINE__);
  TORCH_CHECK(length >= 0, "minlength should be >= 0");
  if (self.numel() > 0) {
    length = std::max(length, at::max(self).item().toLong() + 1);
  }
  return run_by_rule(op, self, weights, length)[0].toTensor();
}

}  // namespace

void register_bins(OpRegistry& ops) {
  ops.composed("histc", &histc);
  ops.composed("bincount", &bincount);
}

}  // namespace tessera::detail
