// Losses: the terms, one an element or one a sample, come by the op's rule from
// ATen's own kernel; what is left is to reduce them over the whole tensor.
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss_ops.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>

#include <memory>
#include <optional>
#include <utility>

#include "dispatch/composite.h"
#include "dispatch/run_by_rule.h"
#include "ops/all_ops.h"

namespace tessera::detail {
namespace {

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

enum class Terms : uint8_t { kElements, kSamples };

struct Loss {
  const char* forward;
  const char* backward;  // nullptr where ATen composes it
  Terms terms;
};

constexpr Loss kLosses[] = {
    {"binary_cross_entropy", "binary_cross_entropy_backward", Terms::kElements},
    {"binary_cross_entropy_with_logits", nullptr, Terms::kElements},
    {"huber_loss", "huber_loss_backward", Terms::kElements},
    {"mse_loss", "mse_loss_backward", Terms::kElements},
    {"multi_margin_loss", "multi_margin_loss_backward", Terms::kSamples},
    {"multilabel_margin_loss_forward",
     "multilabel_margin_loss_backward",
     Terms::kSamples},
    {"smooth_l1_loss", "smooth_l1_loss_backward", Terms::kElements},
    {"soft_margin_loss", "soft_margin_loss_backward", Terms::kElements},
};

int64_t count_terms(const at::Tensor& self, Terms terms) {
  if (terms == Terms::kElements) {
    return self.numel();
  }
  return self.dim() == 2 ? self.size(0) : 1;
}

// Asks the op's own kernel, by its rule, for another reduction and does the
// rest over the whole tensor.
class LossKernel : public c10::OperatorKernel {
 public:
  explicit LossKernel(const OpInfo& op)
      : op_(op), reduction_(argument_index(op, "reduction")) {}

  void operator()(
      const c10::OperatorHandle&,
      c10::DispatchKeySet,
      torch::jit::Stack* stack) {
    auto& argument = torch::jit::peek(stack, reduction_, op_.args.size());
    const int64_t reduction = argument.toInt();
    argument = instead_of(reduction);
    run_op(op_, stack);
    finish(stack, reduction);
  }

 protected:
  // The terms, and their reduction.
  virtual int64_t instead_of(int64_t /*reduction*/) const {
    return at::Reduction::None;
  }
  virtual void finish(torch::jit::Stack* stack, int64_t reduction) const {
    auto& losses = torch::jit::peek(stack, 0, op_.returns.size());
    losses = reduce(losses.toTensor(), reduction);
  }

  const OpInfo& op_;

 private:
  const size_t reduction_;
};

// Its gradient. That of a mean is that of a sum, divided by the number of terms
// of the whole tensor.
class LossGradientKernel final : public c10::OperatorKernel {
 public:
  LossGradientKernel(const OpInfo& op, Terms terms)
      : op_(op),
        terms_(terms),
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
      grad = at::div(
          grad.toTensor(), static_cast<double>(count_terms(self, terms_)));
      reduction = not_mean(at::Reduction::Mean);
    }
    run_op(op_, stack);
  }

 private:
  const OpInfo& op_;
  const Terms terms_;
  const size_t grad_;
  const size_t self_;
  const size_t reduction_;
};

// nll_loss and nll_loss2d. The mean is weighted: the sum over the samples'
// total weight, which the gradient divides by in turn, whatever the layout.
class NllLossKernel final : public LossKernel {
 public:
  using LossKernel::LossKernel;

 private:
  int64_t instead_of(int64_t reduction) const override {
    return not_mean(reduction);
  }
  void finish(torch::jit::Stack* stack, int64_t reduction) const override {
    if (reduction == at::Reduction::Mean) {
      auto& loss = torch::jit::peek(stack, 0, 2);
      auto& total_weight = torch::jit::peek(stack, 1, 2);
      total_weight = reduced_for(total_weight.toTensor(), op_.name.c_str());
      loss = at::div(loss.toTensor(), total_weight.toTensor());
    }
  }
};

// ATen fills a pending sum in place where there are no elements to average.
at::Tensor cross_entropy_loss(
    const at::Tensor& self,
    const at::Tensor& target,
    const std::optional<at::Tensor>& weight,
    int64_t reduction,
    // NOLINTNEXTLINE(performance-unnecessary-value-param): ATen's signature
    c10::SymInt ignore_index,
    double label_smoothing) {
  std::optional<CompositeScope> writes_own;
  if (self.numel() == 0) {
    writes_own.emplace();
  }
  return at::_ops::cross_entropy_loss::redispatch(
      kComposition,
      self,
      target,
      weight,
      reduction,
      std::move(ignore_index),
      label_smoothing);
}

template <class Kernel, class... Args>
void add_loss(OpRegistry& ops, const char* name, Args... args) {
  ops.composed(
      name,
      torch::CppFunction::makeFromBoxedFunctor(
          std::make_unique<Kernel>(aten_op(name), args...)));
}

}  // namespace

void register_losses(OpRegistry& ops) {
  for (const Loss& loss : kLosses) {
    add_loss<LossKernel>(ops, loss.forward);
    if (loss.backward != nullptr) {
      add_loss<LossGradientKernel>(ops, loss.backward, loss.terms);
    }
  }
  add_loss<NllLossKernel>(ops, "nll_loss_forward");
  add_loss<NllLossKernel>(ops, "nll_loss2d_forward");
  ops.composed("cross_entropy_loss", &cross_entropy_loss);
  ops.above_autograd("cross_entropy_loss", &cross_entropy_loss);
}

}  // namespace tessera::detail
