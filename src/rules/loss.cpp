#include "rules/loss.h"

#include <ATen/core/Reduction.h>

#include <utility>

#include "rules/pointwise.h"
#include "rules/rows.h"

namespace tessera::detail {
namespace {

Rows loss_rows(const OpCall& call) {
  return call.integer("reduction") == at::Reduction::None ? pointwise_rows(call)
                                                          : Rows{};
}

// The gradient of the result comes first, broadcasts, and enters linearly.
Rows loss_backward_rows(const OpCall& call) {
  if (call.integer("reduction") == at::Reduction::Mean) {
    return {};
  }
  Rows rows = pointwise_rows(call);
  for (const ReduceOp op : kLinearReductions) {
    Row row = uniform_row(call, R, P(op));
    row.inputs[0] = P(op);
    rows.push_back(place_outs(call, {std::move(row)})[0]);
  }
  return rows;
}

Rule loss_rule(RowsFunction rows) {
  Rule rule{std::move(rows)};
  rule.elementwise = true;
  rule.ignores_numbers = true;
  return rule;
}

}  // namespace

std::vector<Placement> total_weight_placements(const OpCall& call) {
  if (call.integer("reduction") == at::Reduction::Mean) {
    return {R};
  }
  return {R, P(ReduceOp::Sum)};
}

void add_loss_rules(RuleTable& table) {
  table.add(
      {"aten::mse_loss",
       "aten::smooth_l1_loss",
       "aten::huber_loss",
       "aten::binary_cross_entropy_with_logits",
       "aten::soft_margin_loss"},
      loss_rule(loss_rows));
  Rule of_probabilities = loss_rule(loss_rows);
  of_probabilities.checked_arguments = {"self", "target"};
  table.add("aten::binary_cross_entropy", of_probabilities);
  table.add(
      {"aten::mse_loss_backward",
       "aten::smooth_l1_loss_backward",
       "aten::huber_loss_backward",
       "aten::binary_cross_entropy_backward",
       "aten::soft_margin_loss_backward"},
      loss_rule(loss_backward_rows));
}

}  // namespace tessera::detail
