// weight_norm: ATen has one fused kernel for it, whose norms run over all of a
// tensor but one dimension.
#include <ATen/ops/_weight_norm_differentiable_backward.h>
#include <ATen/ops/norm_except_dim.h>

#include "ops/all_ops.h"

namespace tessera::detail {

namespace {

std::tuple<at::Tensor, at::Tensor> weight_norm(
    const at::Tensor& v, const at::Tensor& g, int64_t dim) {
  auto norms = at::norm_except_dim(v, 2, dim);
  return {v.mul(g.div(norms)), norms};
}

std::tuple<at::Tensor, at::Tensor> weight_norm_backward(
    const at::Tensor& grad,
    const at::Tensor& v,
    const at::Tensor& g,
    const at::Tensor& norms,
    int64_t dim) {
  return at::_weight_norm_differentiable_backward(grad, v, g, norms, dim);
}

}  // namespace

void register_weight_norm(OpRegistry& ops) {
  ops.composed("_weight_norm_interface", &weight_norm);
  ops.composed("_weight_norm_interface_backward", &weight_norm_backward);
}

}  // namespace tessera::detail
