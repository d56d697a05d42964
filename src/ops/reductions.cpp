// Means, variances and standard deviations over the whole tensor, as reductions
// of elementwise functions.
#include <ATen/ops/abs.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/squeeze.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <tuple>

#include "dispatch/run_by_rule.h"
#include "ops/all_ops.h"
#include "ops/reduced_dims.h"

namespace tessera::detail {
namespace {

bool is_inexact(at::ScalarType dtype) {
  return at::isFloatingType(dtype) || at::isComplexType(dtype);
}

at::Tensor mean_dim(
    const at::Tensor& self,
    at::OptionalIntArrayRef dim,
    bool keepdim,
    std::optional<at::ScalarType> dtype) {
  const auto result = dtype.value_or(self.scalar_type());
  TORCH_CHECK(
      is_inexact(result),
      "[mean] expected a floating point or complex dtype, but got ",
      result,
      "; give such a dtype, or convert the input");
  const auto dims = reduced_dims(self, dim);
  const auto sum = at::sum(self, dims, keepdim, accumulate_dtype(result));
  // Where the sum is pending the mean is too, until it is rounded.
  const auto count = static_cast<double>(reduced_count(self, dims));
  return at::div(sum, at::Scalar(count)).to(result);
}

at::Tensor mean(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return mean_dim(self, at::OptionalIntArrayRef(), /*keepdim=*/false, dtype);
}

// ATen's warning, by the sizes of the whole tensor.
void warn_if_no_degrees_of_freedom(
    const char* name,
    const at::Tensor& self,
    int64_t count,
    double correction) {
  const int64_t per_result = self.numel() == 0 && count != 0 ? 0 : count;
  if (static_cast<double>(per_result) - correction <= 0) {
    TORCH_WARN(
        name,
        "(): degrees of freedom is <= 0. Correction should be strictly less "
        "than the reduction factor (input numel divided by output numel).");
  }
}

struct Moments {
  at::Tensor variance;
  at::Tensor mean;
};

// In two passes, deviations from the mean being small where values may not be.
// The results have the accumulating dtype, which callers round once.
Moments moments(
    const char* name,
    const at::Tensor& self,
    at::OptionalIntArrayRef dim,
    const std::optional<at::Scalar>& correction,
    bool keepdim) {
  TORCH_CHECK(
      is_inexact(self.scalar_type()),
      "[",
      name,
      "] expected a floating point or complex input, but got ",
      self.scalar_type(),
      "; convert it first");
  const auto dims = reduced_dims(self, dim);
  const int64_t count = reduced_count(self, dims);
  const double taken = correction.value_or(1).toDouble();
  warn_if_no_degrees_of_freedom(name, self, count, taken);

  const auto values = self.to(accumulate_dtype(self.scalar_type()));
  auto mean = mean_dim(values, dims, /*keepdim=*/true, std::nullopt);
  auto deviation = at::sub(values, mean);
  if (deviation.is_complex()) {
    deviation = at::abs(deviation);
  }
  auto squares =
      at::sum(at::mul(deviation, deviation), dims, keepdim, std::nullopt);
  // Of no values there is no variance, whatever is taken from their number.
  const double freedom =
      count == 0 ? 0 : std::max(static_cast<double>(count) - taken, 0.0);
  if (freedom == 0) {
    // 0 / 0 in one term of a pending sum would hide that the whole is infinite.
    // Not being linear, this has the sum taken first.
    squares = at::clamp_min(squares, 0);
  }
  if (!keepdim && self.dim() > 0) {
    mean = at::squeeze(mean, dims);
  }
  return {at::div(squares, at::Scalar(freedom)), std::move(mean)};
}

// Variances are real.
at::ScalarType real_dtype(const at::Tensor& self) {
  return c10::toRealValueType(self.scalar_type());
}

// A variance, or its root.
template <bool kRoot>
at::Tensor spread_of(const at::Tensor& self, const Moments& found) {
  return (kRoot ? at::sqrt(found.variance) : found.variance)
      .to(real_dtype(self));
}

template <bool kRoot>
at::Tensor spread(
    const at::Tensor& self,
    at::OptionalIntArrayRef dim,
    const std::optional<at::Scalar>& correction,
    bool keepdim) {
  const char* const name = kRoot ? "std" : "var";
  return spread_of<kRoot>(self, moments(name, self, dim, correction, keepdim));
}

template <bool kRoot>
std::tuple<at::Tensor, at::Tensor> spread_and_mean(
    const at::Tensor& self,
    at::OptionalIntArrayRef dim,
    const std::optional<at::Scalar>& correction,
    bool keepdim) {
  const char* const name = kRoot ? "std_mean" : "var_mean";
  const auto found = moments(name, self, dim, correction, keepdim);
  return {spread_of<kRoot>(self, found), found.mean.to(self.scalar_type())};
}

}  // namespace

void register_reductions(OpRegistry& ops) {
  ops.composed("mean", &mean);
  ops.composed("mean.dim", &mean_dim);
  ops.composed("var.correction", &spread<false>);
  ops.composed("std.correction", &spread<true>);
  ops.composed("var_mean.correction", &spread_and_mean<false>);
  ops.composed("std_mean.correction", &spread_and_mean<true>);
}

}  // namespace tessera::detail
