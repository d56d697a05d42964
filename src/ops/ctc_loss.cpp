// ctc_loss. One of its results has as many columns as the longest target of the
// batch needs: as an op of our own, a rank's part has as many as the whole.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_ctc_loss.h>
#include <ATen/ops/_ctc_loss_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "dispatch/own_op.h"
#include "dispatch/run_by_rule.h"
#include "ops/all_ops.h"

namespace tessera::detail {

namespace {

using Lengths = std::vector<int64_t>;

int64_t longest_of(at::IntArrayRef lengths) {
  return lengths.empty() ? 0
                         : *std::max_element(lengths.begin(), lengths.end());
}

int64_t sum_of(at::IntArrayRef lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

// What the op and its gradient are given of the samples that a rank holds.
struct CtcSamples {
  Lengths input_lengths;
  Lengths target_lengths;
  int64_t blank = 0;
  bool zero_infinity = false;
  int64_t longest = 0;  // target of the whole batch
  // Where the first sample's target begins in targets of one dimension, which
  // every rank has all of.
  int64_t first_target = 0;

  at::Tensor own(const at::Tensor& targets) const {
    return targets.dim() == 1
               ? targets.narrow(0, first_target, sum_of(target_lengths))
               : targets;
  }
  // The columns of log_alpha that these samples have.
  int64_t columns() const { return 2 * longest_of(target_lengths) + 1; }
  int64_t all_columns() const { return 2 * longest + 1; }
};

#define TESSERA_CTC_SAMPLES                                \
  "int[] input_lengths, int[] target_lengths, int blank, " \
  "bool zero_infinity, int longest, int first_target=0"

struct CtcLoss {
  static constexpr const char* kSchema =
      "ctc_loss(Tensor log_probs, Tensor targets, " TESSERA_CTC_SAMPLES
      ") -> (Tensor, Tensor)";
  using Result = std::tuple<at::Tensor, at::Tensor>;
  struct Args {
    at::Tensor log_probs;
    at::Tensor targets;
    CtcSamples samples;
  };

  static Result on_data(const Args& args) {
    const auto& samples = args.samples;
    auto [loss, log_alpha] = at::_ctc_loss(
        args.log_probs,
        samples.own(args.targets),
        samples.input_lengths,
        samples.target_lengths,
        samples.blank,
        samples.zero_infinity);
    const int64_t more = samples.all_columns() - log_alpha.size(2);
    if (more > 0) {
      log_alpha = at::constant_pad_nd(
          log_alpha, {0, more}, -std::numeric_limits<double>::infinity());
    }
    return {std::move(loss), std::move(log_alpha)};
  }

  static Result on_meta(const Args& args) {
    const auto& log_probs = args.log_probs;
    return {
        at::empty({log_probs.size(1)}, log_probs.options()),
        at::empty(
            {log_probs.size(1), log_probs.size(0), args.samples.all_columns()},
            log_probs.options())};
  }
};

struct CtcLossBackward {
  static constexpr const char* kSchema =
      "ctc_loss_backward(Tensor grad, Tensor log_probs, Tensor targets, "
      "Tensor neg_log_likelihood, Tensor log_alpha, " TESSERA_CTC_SAMPLES
      ") -> Tensor";
  using Result = at::Tensor;
  struct Args {
    at::Tensor grad;
    at::Tensor log_probs;
    at::Tensor targets;
    at::Tensor loss;
    at::Tensor log_alpha;
    CtcSamples samples;
  };

  static at::Tensor on_data(const Args& args) {
    const auto& samples = args.samples;
    return at::_ctc_loss_backward(
        args.grad,
        args.log_probs,
        samples.own(args.targets),
        samples.input_lengths,
        samples.target_lengths,
        args.loss,
        args.log_alpha.narrow(2, 0, samples.columns()).contiguous(),
        samples.blank,
        samples.zero_infinity);
  }

  static at::Tensor on_meta(const Args& args) {
    return at::empty_like(args.log_probs, at::MemoryFormat::Contiguous);
  }
};

bool are_within(at::IntArrayRef lengths, int64_t most) {
  return std::all_of(lengths.begin(), lengths.end(), [&](int64_t length) {
    return length >= 0 && length <= most;
  });
}

// Whether the lengths are such that no rank refuses its part of them.
bool fit(
    const at::Tensor& log_probs,
    const at::Tensor& targets,
    at::IntArrayRef input_lengths,
    at::IntArrayRef target_lengths) {
  if (log_probs.dim() != 3 || targets.dim() < 1 || targets.dim() > 2 ||
      log_probs.size(1) == 0) {
    return false;
  }
  const auto batch = static_cast<size_t>(log_probs.size(1));
  const bool targets_fit =
      targets.dim() == 1 ? are_within(target_lengths, targets.size(0)) &&
                               sum_of(target_lengths) == targets.size(0)
                         : targets.size(0) == log_probs.size(1) &&
                               are_within(target_lengths, targets.size(1));
  return input_lengths.size() == batch && target_lengths.size() == batch &&
         are_within(input_lengths, log_probs.size(0)) && targets_fit;
}

CtcLoss::Result ctc_loss(
    const at::Tensor& log_probs,
    const at::Tensor& targets,
    at::IntArrayRef input_lengths,
    at::IntArrayRef target_lengths,
    int64_t blank,
    bool zero_infinity) {
  if (fit(log_probs, targets, input_lengths, target_lengths)) {
    return call_op<CtcLoss>(
        {log_probs,
         targets,
         {input_lengths.vec(),
          target_lengths.vec(),
          blank,
          zero_infinity,
          longest_of(target_lengths)}});
  }
  static const OpInfo& op = aten_op("_ctc_loss");
  const auto results = run_by_rule(
      op,
      log_probs,
      targets,
      input_lengths,
      target_lengths,
      blank,
      zero_infinity);
  return tensors_of<CtcLoss::Result>(results);
}

at::Tensor ctc_loss_backward(
    const at::Tensor& grad,
    const at::Tensor& log_probs,
    const at::Tensor& targets,
    at::IntArrayRef input_lengths,
    at::IntArrayRef target_lengths,
    const at::Tensor& loss,
    const at::Tensor& log_alpha,
    int64_t blank,
    bool zero_infinity) {
  if (fit(log_probs, targets, input_lengths, target_lengths)) {
    return call_op<CtcLossBackward>(
        {grad,
         log_probs,
         targets,
         loss,
         log_alpha,
         {input_lengths.vec(),
          target_lengths.vec(),
          blank,
          zero_infinity,
          longest_of(target_lengths)}});
  }
  static const OpInfo& op = aten_op("_ctc_loss_backward");
  return run_by_rule(
             op,
             grad,
             log_probs,
             targets,
             input_lengths,
             target_lengths,
             loss,
             log_alpha,
             blank,
             zero_infinity)[0]
      .toTensor();
}

}  // namespace

void register_ctc_loss(OpRegistry& ops) {
  define_op<CtcLoss>(ops);
  define_op<CtcLossBackward>(ops);
  ops.composed("_ctc_loss", &ctc_loss);
  ops.composed("_ctc_loss_backward", &ctc_loss_backward);
}

}  // namespace tessera::detail
