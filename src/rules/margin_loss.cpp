// Losses by sample: negative log likelihoods of images, and margins. Means are
// decomposed into a sum and a division before they come here.
#include <ATen/core/Reduction.h>

#include <utility>

#include "rules/layer_families.h"
#include "rules/loss.h"
#include "rules/rows.h"

namespace tessera::detail {
namespace {

bool is_unreduced(const OpCall& call) {
  return call.integer("reduction") == at::Reduction::None;
}

bool is_mean(const OpCall& call) {
  return call.integer("reduction") == at::Reduction::Mean;
}

// nll_loss2d_forward(self[n, c, h, w], target[n, h, w], weight?)
//   -> output, total_weight
Rows nll_loss2d_rows(const OpCall& call) {
  const Placement sum = P(ReduceOp::Sum);
  Rows rows;
  if (is_mean(call)) {
    return rows;
  }
  for (int64_t d = 0; d < 3; ++d) {
    const Placement self = S(d == 0 ? 0 : d + 1);
    if (is_unreduced(call)) {
      rows.push_back({{self, S(d), R}, {S(d), R}});
    } else {
      rows.push_back({{self, S(d), R}, {sum, sum}});
    }
  }
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back({{P(op), R, R}, {P(op), R}});
  }
  return rows;
}

std::vector<Sizes> nll_loss2d_sizes(const OpCall& call) {
  return {
      is_unreduced(call) ? call.tensor(1).sizes : CheckedSizes{},
      CheckedSizes{}};
}

// nll_loss2d_backward(grad, self, target, weight?, ..., total_weight)
Rows nll_loss2d_backward_rows(const OpCall& call) {
  Rows rows;
  for (const Placement& total : total_weight_placements(call)) {
    for (int64_t d = 0; d < 3; ++d) {
      const Placement self = S(d == 0 ? 0 : d + 1);
      rows.push_back(
          {{is_unreduced(call) ? S(d) : R, self, S(d), R, total}, {self}});
    }
    for (const ReduceOp op : kLinearReductions) {
      rows.push_back({{P(op), R, R, R, total}, {P(op)}});
    }
  }
  return rows;
}

std::vector<Sizes> gradient_sizes(const OpCall& call) {
  return {call.tensor(1).sizes};
}

// multi_margin_loss(self[n, c], target[n], weight?) -> output,
// multilabel_margin_loss_forward(self[n, c], target[n, c])
//   -> output, is_target[n, c]
Rows margin_rows(const OpCall& call) {
  const size_t results = call.schema().returns().size();
  Rows rows;
  if (call.tensor(0).dim() != 2 || !is_unreduced(call)) {
    return rows;
  }
  Row row({S(0), S(0)}, {});
  row.outputs.assign(results, S(0));
  if (operand_count(call) == 3) {
    row.inputs.push_back(R);
  }
  rows.push_back(std::move(row));
  return rows;
}

std::vector<Sizes> margin_sizes(const OpCall& call) {
  const TensorArg& self = call.tensor(0);
  CheckedSizes output;
  const bool has_labels = call.schema().returns().size() == 2;
  if (is_unreduced(call) && self.dim() == 2) {
    output.push_back(self.sizes[0]);
  } else if (is_unreduced(call) && !has_labels && call.tensor(1).dim() == 1) {
    output.push_back(1);  // one sample, whose target is a list of one
  }
  std::vector<Sizes> sizes{output};
  if (has_labels) {
    sizes.push_back(call.tensor(1).sizes);
  }
  return sizes;
}

// (grad, self, target, weight? or is_target) -> grad_self
Rows margin_backward_rows(const OpCall& call) {
  Rows rows;
  if (is_mean(call)) {
    return rows;
  }
  const bool labels = call.tensor(2).dim() == 2;
  if (call.tensor(1).dim() == 2) {
    rows.push_back(
        {{is_unreduced(call) ? S(0) : R, S(0), S(0), labels ? S(0) : R},
         {S(0)}});
  }
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back({{P(op), R, R, R}, {P(op)}});
  }
  return rows;
}

}  // namespace

void add_margin_loss_rules(RuleTable& table) {
  Rule nll = rule_of(nll_loss2d_rows, nll_loss2d_sizes);
  nll.checked_arguments = {"target"};
  table.add("aten::nll_loss2d_forward", nll);
  table.add(
      "aten::nll_loss2d_backward",
      rule_of(nll_loss2d_backward_rows, gradient_sizes));
  Rule margin = rule_of(margin_rows, margin_sizes);
  margin.checked_arguments = {"target"};
  table.add(
      {"aten::multi_margin_loss", "aten::multilabel_margin_loss_forward"},
      margin);
  table.add(
      {"aten::multi_margin_loss_backward",
       "aten::multilabel_margin_loss_backward"},
      rule_of(margin_backward_rows, gradient_sizes));
}

}  // namespace tessera::detail
