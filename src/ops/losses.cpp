// Losses: the elementwise part runs by its rule, with ATen's own kernel; what
// is left is to reduce it over the whole tensor.
#include <ATen/core/Reduction.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>

#include <tuple>

#include "dispatch/run_by_rule.h"
#include "ops/all_ops.h"
#include "ops/reduced_dims.h"

namespace tessera::detail {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor reduce(const at::Tensor& losses, int64_t reduction) {
  switch (reduction) {
    case at::Reduction::Mean:
      return at::mean(losses);
    case at::Reduction::Sum:
      return at::sum(losses);
    default:
      return losses;
  }
}

template <typename... Args>
at::Tensor one_result(const OpInfo& op, Args&&... args) {
  return run_by_rule(op, std::forward<Args>(args)...)[0].toTensor();
}

// The gradient of a mean over `elements` is that of a sum, divided.
at::Tensor per_element(
    const at::Tensor& grad, const at::Tensor& elements, int64_t reduction) {
  return reduction == at::Reduction::Mean
             ? at::div(grad, static_cast<double>(elements.numel()))
             : grad;
}

int64_t not_mean(int64_t reduction) {
  return reduction == at::Reduction::Mean ? int64_t{at::Reduction::Sum}
                                          : reduction;
}

constexpr int64_t kUnreduced = at::Reduction::None;

at::Tensor mse_loss(
    const at::Tensor& self, const at::Tensor& target, int64_t reduction) {
  static const OpInfo& op = aten_op("mse_loss");
  return reduce(one_result(op, self, target, kUnreduced), reduction);
}

at::Tensor mse_loss_backward(
    const at::Tensor& grad,
    const at::Tensor& self,
    const at::Tensor& target,
    int64_t reduction) {
  static const OpInfo& op = aten_op("mse_loss_backward");
  return one_result(
      op,
      per_element(grad, self, reduction),
      self,
      target,
      not_mean(reduction));
}

at::Tensor smooth_l1_loss(
    const at::Tensor& self,
    const at::Tensor& target,
    int64_t reduction,
    double beta) {
  static const OpInfo& op = aten_op("smooth_l1_loss");
  return reduce(one_result(op, self, target, kUnreduced, beta), reduction);
}

at::Tensor smooth_l1_loss_backward(
    const at::Tensor& grad,
    const at::Tensor& self,
    const at::Tensor& target,
    int64_t reduction,
    double beta) {
  static const OpInfo& op = aten_op("smooth_l1_loss_backward");
  return one_result(
      op,
      per_element(grad, self, reduction),
      self,
      target,
      not_mean(reduction),
      beta);
}

at::Tensor huber_loss(
    const at::Tensor& self,
    const at::Tensor& target,
    int64_t reduction,
    double delta) {
  static const OpInfo& op = aten_op("huber_loss");
  return reduce(one_result(op, self, target, kUnreduced, delta), reduction);
}

at::Tensor huber_loss_backward(
    const at::Tensor& grad,
    const at::Tensor& self,
    const at::Tensor& target,
    int64_t reduction,
    double delta) {
  static const OpInfo& op = aten_op("huber_loss_backward");
  return one_result(
      op,
      per_element(grad, self, reduction),
      self,
      target,
      not_mean(reduction),
      delta);
}

at::Tensor soft_margin_loss(
    const at::Tensor& self, const at::Tensor& target, int64_t reduction) {
  static const OpInfo& op = aten_op("soft_margin_loss");
  return reduce(one_result(op, self, target, kUnreduced), reduction);
}

at::Tensor soft_margin_loss_backward(
    const at::Tensor& grad,
    const at::Tensor& self,
    const at::Tensor& target,
    int64_t reduction) {
  static const OpInfo& op = aten_op("soft_margin_loss_backward");
  return one_result(
      op,
      per_element(grad, self, reduction),
      self,
      target,
      not_mean(reduction));
}

at::Tensor binary_cross_entropy(
    const at::Tensor& self,
    const at::Tensor& target,
    const OptionalTensor& weight,
    int64_t reduction) {
  static const OpInfo& op = aten_op("binary_cross_entropy");
  return reduce(one_result(op, self, target, weight, kUnreduced), reduction);
}

at::Tensor binary_cross_entropy_backward(
    const at::Tensor& grad,
    const at::Tensor& self,
    const at::Tensor& target,
    const OptionalTensor& weight,
    int64_t reduction) {
  static const OpInfo& op = aten_op("binary_cross_entropy_backward");
  return one_result(
      op,
      per_element(grad, self, reduction),
      self,
      target,
      weight,
      not_mean(reduction));
}

at::Tensor binary_cross_entropy_with_logits(
    const at::Tensor& self,
    const at::Tensor& target,
    const OptionalTensor& weight,
    const OptionalTensor& pos_weight,
    int64_t reduction) {
  static const OpInfo& op = aten_op("binary_cross_entropy_with_logits");
  return reduce(
      one_result(op, self, target, weight, pos_weight, kUnreduced), reduction);
}

// The mean is weighted: the sum over the samples' total weight, which the
// gradient divides by in turn, whatever the layout.
std::tuple<at::Tensor, at::Tensor> nll_loss_forward(
    const at::Tensor& self,
    const at::Tensor& target,
    const OptionalTensor& weight,
    int64_t reduction,
    int64_t ignore_index) {
  static const OpInfo& op = aten_op("nll_loss_forward");
  const auto results =
      run_by_rule(op, self, target, weight, not_mean(reduction), ignore_index);
  auto loss = results[0].toTensor();
  auto total_weight = results[1].toTensor();
  if (reduction == at::Reduction::Mean) {
    loss = at::div(loss, total_weight);
  }
  return {std::move(loss), std::move(total_weight)};
}

}  // namespace

void register_losses(OpRegistry& ops) {
  ops.composed("mse_loss", &mse_loss);
  ops.composed("mse_loss_backward", &mse_loss_backward);
  ops.composed("smooth_l1_loss", &smooth_l1_loss);
  ops.composed("smooth_l1_loss_backward", &smooth_l1_loss_backward);
  ops.composed("huber_loss", &huber_loss);
  ops.composed("huber_loss_backward", &huber_loss_backward);
  ops.composed("soft_margin_loss", &soft_margin_loss);
  ops.composed("soft_margin_loss_backward", &soft_margin_loss_backward);
  ops.composed("binary_cross_entropy", &binary_cross_entropy);
  ops.composed("binary_cross_entropy_backward", &binary_cross_entropy_backward);
  ops.composed(
      "binary_cross_entropy_with_logits", &binary_cross_entropy_with_logits);
  ops.composed("nll_loss_forward", &nll_loss_forward);
}

}  // namespace tessera::detail
