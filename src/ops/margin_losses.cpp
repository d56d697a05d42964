// Losses by sample: ATen's kernel gives each sample's by its rule; what is left
// is to reduce them over the whole batch.
#include <ATen/core/Reduction.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>

#include <tuple>

#include "dispatch/run_by_rule.h"
#include "ops/all_ops.h"

namespace tessera::detail {
namespace {

constexpr int64_t kEach = at::Reduction::None;

at::Tensor over_samples(const at::Tensor& losses, int64_t reduction) {
  switch (reduction) {
    case at::Reduction::Mean:
      return at::mean(losses);
    case at::Reduction::Sum:
      return at::sum(losses);
    default:
      return losses;
  }
}

// The gradient of a mean is that of a sum, divided by the number of samples.
struct SummedGradient {
  SummedGradient(const at::Tensor& grad, const at::Tensor& self, int64_t r)
      : value(grad), reduction(r) {
    if (r == at::Reduction::Mean) {
      const int64_t samples = self.dim() == 2 ? self.size(0) : 1;
      value = at::div(grad, static_cast<double>(samples));
      reduction = at::Reduction::Sum;
    }
  }

  at::Tensor value;
  int64_t reduction;
};

at::Tensor multi_margin_loss(
    const at::Tensor& self,
    const at::Tensor& target,
    const at::Scalar& p,
    const at::Scalar& margin,
    const std::optional<at::Tensor>& weight,
    int64_t reduction) {
  static const OpInfo& op = aten_op("multi_margin_loss");
  return over_samples(
      run_by_rule(op, self, target, p, margin, weight, kEach)[0].toTensor(),
      reduction);
}

at::Tensor multi_margin_loss_backward(
    const at::Tensor& grad,
    const at::Tensor& self,
    const at::Tensor& target,
    const at::Scalar& p,
    const at::Scalar& margin,
    const std::optional<at::Tensor>& weight,
    int64_t reduction) {
  static const OpInfo& op = aten_op("multi_margin_loss_backward");
  const SummedGradient of(grad, self, reduction);
  return run_by_rule(
             op, of.value, self, target, p, margin, weight, of.reduction)[0]
      .toTensor();
}

std::tuple<at::Tensor, at::Tensor> multilabel_margin_loss(
    const at::Tensor& self, const at::Tensor& target, int64_t reduction) {
  static const OpInfo& op = aten_op("multilabel_margin_loss_forward");
  const auto results = run_by_rule(op, self, target, kEach);
  return {
      over_samples(results[0].toTensor(), reduction), results[1].toTensor()};
}

at::Tensor multilabel_margin_loss_backward(
    const at::Tensor& grad,
    const at::Tensor& self,
    const at::Tensor& target,
    int64_t reduction,
    const at::Tensor& is_target) {
  static const OpInfo& op = aten_op("multilabel_margin_loss_backward");
  const SummedGradient of(grad, self, reduction);
  return run_by_rule(op, of.value, self, target, of.reduction, is_target)[0]
      .toTensor();
}

// The mean is weighted, as nll_loss's.
std::tuple<at::Tensor, at::Tensor> nll_loss2d(
    const at::Tensor& self,
    const at::Tensor& target,
    const std::optional<at::Tensor>& weight,
    int64_t reduction,
    c10::SymInt ignore_index) {
  static const OpInfo& op = aten_op("nll_loss2d_forward");
  const bool mean = reduction == at::Reduction::Mean;
  const int64_t summed = mean ? int64_t{at::Reduction::Sum} : reduction;
  const auto results =
      run_by_rule(op, self, target, weight, summed, ignore_index.expect_int());
  auto loss = results[0].toTensor();
  auto total_weight = results[1].toTensor();
  if (mean) {
    total_weight = reduced_for(total_weight, "aten::nll_loss2d_forward");
    loss = at::div(loss, total_weight);
  }
  return {std::move(loss), std::move(total_weight)};
}

}  // namespace

void register_margin_losses(OpRegistry& ops) {
  ops.composed("multi_margin_loss", &multi_margin_loss);
  ops.composed("multi_margin_loss_backward", &multi_margin_loss_backward);
  ops.composed("multilabel_margin_loss_forward", &multilabel_margin_loss);
  ops.composed(
      "multilabel_margin_loss_backward", &multilabel_margin_loss_backward);
  ops.composed("nll_loss2d_forward", &nll_loss2d);
}

}  // namespace tessera::detail
