// Losses: the elementwise part runs by its rule, with ATen's own kernel; what
// is left is to reduce it over the whole tensor.
#include <ATen/core/Reduction.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>

#include <memory>
#include <string>
#include <tuple>

#include "dispatch/run_by_rule.h"
#include "ops/all_ops.h"

namespace tessera::detail {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

size_t argument_index(const OpInfo& op, const char* name) {
  const auto index = op.handle.schema().argumentIndexWithName(name);
  TORCH_INTERNAL_ASSERT(index.has_value(), op.name, " has no argument ", name);
  return static_cast<size_t>(*index);
}

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

// The reduction that the op's own kernel is asked for instead of a mean.
int64_t not_mean(int64_t reduction) {
  return reduction == at::Reduction::Mean ? int64_t{at::Reduction::Sum}
                                          : reduction;
}

// Losses of one element each, with a `reduction`.
constexpr const char* kElementwise[] = {
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "huber_loss",
    "mse_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
};

// One of them: the losses by the op's rule, then their reduction.
class LossKernel final : public c10::OperatorKernel {
 public:
  explicit LossKernel(const OpInfo& op)
      : op_(op), reduction_(argument_index(op, "reduction")) {}

  void operator()(
      const c10::OperatorHandle&,
      c10::DispatchKeySet,
      torch::jit::Stack* stack) {
    auto& argument = torch::jit::peek(stack, reduction_, op_.args.size());
    const int64_t reduction = argument.toInt();
    argument = int64_t{at::Reduction::None};
    run_op(op_, stack);
    auto& losses = stack->back();
    losses = reduce(losses.toTensor(), reduction);
  }

 private:
  const OpInfo& op_;
  const size_t reduction_;
};

// Its gradient. That of a mean is that of a sum, divided by the number of
// elements of the whole tensor.
class LossGradientKernel final : public c10::OperatorKernel {
 public:
  explicit LossGradientKernel(const OpInfo& op)
      : op_(op),
        grad_(argument_index(op, "grad_output")),
        self_(argument_index(op, "self")),
        reduction_(argument_index(op, "reduction")) {}

  void operator()(
      const c10::OperatorHandle&,
      c10::DispatchKeySet,
      torch::jit::Stack* stack) {
    const size_t count = op_.args.size();
    auto& reduction = torch::jit::peek(stack, reduction_, count);
    if (reduction.toInt() == at::Reduction::Mean) {
      const auto& self = torch::jit::peek(stack, self_, count).toTensor();
      auto& grad = torch::jit::peek(stack, grad_, count);
      grad = at::div(grad.toTensor(), static_cast<double>(self.numel()));
      reduction = not_mean(at::Reduction::Mean);
    }
    run_op(op_, stack);
  }

 private:
  const OpInfo& op_;
  const size_t grad_;
  const size_t self_;
  const size_t reduction_;
};

template <class Kernel>
void add_loss(OpRegistry& ops, const char* name) {
  ops.composed(
      name,
      torch::CppFunction::makeFromBoxedFunctor(
          std::make_unique<Kernel>(aten_op(name))));
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
    // The gradient divides by it too.
    total_weight = reduced_for(total_weight, "aten::nll_loss_forward");
    loss = at::div(loss, total_weight);
  }
  return {std::move(loss), std::move(total_weight)};
}

}  // namespace

void register_losses(OpRegistry& ops) {
  for (const char* loss : kElementwise) {
    add_loss<LossKernel>(ops, loss);
    // That of the loss with logits is composite.
    const auto gradient = std::string(loss) + "_backward";
    const auto found =
        c10::Dispatcher::singleton().findSchema({"aten::" + gradient, ""});
    if (found.has_value()) {
      add_loss<LossGradientKernel>(ops, gradient.c_str());
    }
  }
  ops.composed("nll_loss_forward", &nll_loss_forward);
}

}  // namespace tessera::detail
