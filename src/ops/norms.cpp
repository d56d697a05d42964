// Vector norms, as reductions of elementwise functions.
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>

#include <limits>

#include "dispatch/run_by_rule.h"
#include "ops/all_ops.h"
#include "ops/reduced_dims.h"

namespace tessera::detail {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The norm of `values`, whose dtype accumulates; complex ones by their
// magnitude.
at::Tensor norm_of(
    const at::Tensor& values, double ord, at::IntArrayRef dims, bool keepdim) {
  const auto real = c10::toRealValueType(values.scalar_type());
  if (ord == 0) {
    return at::sum(at::ne(values, 0), dims, keepdim, real);
  }
  if (ord == 2 && !values.is_complex()) {
    return at::sqrt(at::sum(at::mul(values, values), dims, keepdim));
  }
  const auto magnitudes = at::abs(values);
  if (ord == kInfinity) {
    return at::amax(magnitudes, dims, keepdim);
  }
  if (ord == -kInfinity) {
    return at::amin(magnitudes, dims, keepdim);
  }
  if (ord == 1) {
    return at::sum(magnitudes, dims, keepdim);
  }
  if (ord == 2) {
    return at::sqrt(at::sum(at::mul(magnitudes, magnitudes), dims, keepdim));
  }
  return at::pow(at::sum(at::pow(magnitudes, ord), dims, keepdim), 1.0 / ord);
}

at::Tensor vector_norm(
    const at::Tensor& self,
    const at::Scalar& ord,
    at::OptionalIntArrayRef dim,
    bool keepdim,
    std::optional<at::ScalarType> dtype) {
  const auto own = self.scalar_type();
  const auto in = dtype.value_or(own);
  TORCH_CHECK(
      at::isFloatingType(own) || at::isComplexType(own),
      "[linalg_vector_norm] expected a floating point or complex input, but "
      "got ",
      own,
      "; convert it first");
  TORCH_CHECK(
      c10::promoteTypes(own, in) == in,
      "[linalg_vector_norm] expected a dtype that holds every value of the "
      "input's, which is ",
      own,
      ", but got ",
      in);
  TORCH_CHECK(
      at::isComplexType(own) == at::isComplexType(in),
      "[linalg_vector_norm] expected a dtype as real or complex as the input, "
      "which is ",
      own,
      ", but got ",
      in);
  const auto dims = reduced_dims(self, dim);
  const auto norm =
      norm_of(self.to(accumulate_dtype(in)), ord.toDouble(), dims, keepdim);
  return norm.to(c10::toRealValueType(in));
}

at::Tensor norm_dim_dtype(
    const at::Tensor& self,
    const std::optional<at::Scalar>& p,
    at::IntArrayRef dim,
    bool keepdim,
    at::ScalarType dtype) {
  return vector_norm(self, p.value_or(2), dim, keepdim, dtype);
}

at::Tensor norm_dim(
    const at::Tensor& self,
    const std::optional<at::Scalar>& p,
    at::IntArrayRef dim,
    bool keepdim) {
  return vector_norm(self, p.value_or(2), dim, keepdim, std::nullopt);
}

at::Tensor norm_dtype(
    const at::Tensor& self,
    const std::optional<at::Scalar>& p,
    at::ScalarType dtype) {
  return norm_dim_dtype(self, p, {}, /*keepdim=*/false, dtype);
}

at::Tensor norm(const at::Tensor& self, const at::Scalar& p) {
  return norm_dim(self, p, {}, /*keepdim=*/false);
}

at::Tensor dist(
    const at::Tensor& self, const at::Tensor& other, const at::Scalar& p) {
  return detail::norm(at::sub(self, other), p);
}

}  // namespace

void register_norms(OpRegistry& ops) {
  ops.composed("linalg_vector_norm", &vector_norm);
  ops.composed("norm.Scalar", &norm);
  ops.composed("norm.ScalarOpt_dtype", &norm_dtype);
  ops.composed("norm.ScalarOpt_dim", &norm_dim);
  ops.composed("norm.ScalarOpt_dim_dtype", &norm_dim_dtype);
  ops.composed("dist", &dist);
}

}  // namespace tessera::detail
