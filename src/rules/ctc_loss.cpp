// ctc_loss (ops/ctc_loss.cpp): each sample by itself. The lengths are plain
// numbers, of which a rank is given those of its samples.
#include <algorithm>
#include <numeric>

#include "rules/layer_families.h"
#include "rules/rows.h"

namespace tessera::detail {
namespace {

// Targets of two dimensions have a row a sample; those of one stand one after
// the other, and every rank has them all.
Placement placement_of_targets(const TensorArg& targets) {
  return targets.dim() == 2 ? S(0) : R;
}

// ctc_loss(log_probs[t, n, c], targets) -> loss[n], log_alpha[n, t, ...]
Rows ctc_rows(const OpCall& call) {
  return {
      {{S(1), placement_of_targets(call.tensor(1))},
       {S(0), S(0)},
       Needs::NonEmpty}};
}

// ctc_loss_backward(grad[n], log_probs, targets, loss, log_alpha) -> [t, n, c]
Rows ctc_backward_rows(const OpCall& call) {
  Rows rows{
      {{S(0), S(1), placement_of_targets(call.tensor(2)), S(0), S(0)},
       {S(1)},
       Needs::NonEmpty}};
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back({{P(op), R, R, R, R}, {P(op)}});
  }
  return rows;
}

// The samples that a rank has; `log_probs` is the index of that argument.
Range held_samples(
    const OpCall& call, const LocalView& view, size_t log_probs) {
  return local_range(
      call.tensor(log_probs).sizes[1],
      1,
      view.mesh,
      view.inputs[log_probs],
      view.position);
}

LocalArgument local_lengths(const char* name, size_t log_probs) {
  return {name, [=](const OpCall& call, const LocalView& view) {
            const auto held = held_samples(call, view, log_probs);
            const CheckedSizes all = call.integers(name);
            const auto own = all.slice(held.begin, held.size);
            return c10::IValue(std::vector<int64_t>(own.begin(), own.end()));
          }};
}

LocalArgument first_target(size_t log_probs) {
  return {"first_target", [=](const OpCall& call, const LocalView& view) {
            const auto held = held_samples(call, view, log_probs);
            const CheckedSizes before =
                call.integers("target_lengths").slice(0, held.begin);
            return c10::IValue(
                std::accumulate(before.begin(), before.end(), int64_t{0}));
          }};
}

Rule ctc_rule(Rows (*rows)(const OpCall&), size_t log_probs) {
  Rule rule{rows};
  rule.local_arguments = {
      local_lengths("input_lengths", log_probs),
      local_lengths("target_lengths", log_probs),
      first_target(log_probs)};
  return rule;
}

}  // namespace

void add_ctc_loss_rules(RuleTable& table) {
  table.add("tessera::ctc_loss", ctc_rule(ctc_rows, 0));
  table.add("tessera::ctc_loss_backward", ctc_rule(ctc_backward_rows, 1));
}

}  // namespace tessera::detail
