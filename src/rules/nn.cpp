// Softmax, layer norm and losses.
#include <ATen/core/Reduction.h>

#include <algorithm>
#include <utility>

#include "rules/dimwise.h"
#include "rules/loss.h"
#include "rules/rows.h"
#include "rules/rule_table.h"

namespace tessera::detail {
namespace {

// _softmax_backward_data(grad, output, dim, input_dtype): linear in grad.
Rows softmax_backward_rows(const OpCall& call) {
  Rows rows = dimwise_rows(call);
  const auto dtype = call.tensor(0).dtype;
  if (sum_survives(dtype, dtype_argument(call, "input_dtype", dtype))) {
    for (const ReduceOp op : kLinearReductions) {
      rows.push_back({{P(op), R}, {P(op)}});
    }
  }
  return rows;
}

int64_t batch_dims(const OpCall& call, const TensorArg& input) {
  return input.dim() -
         static_cast<int64_t>(call.integers("normalized_shape").size());
}

// native_layer_norm(input, normalized_shape, weight?, bias?, eps)
//   -> output, mean, rstd
Rows layer_norm_rows(const OpCall& call) {
  Rows rows;
  for (int64_t d = 0; d < batch_dims(call, call.tensor(0)); ++d) {
    rows.push_back({{S(d), R, R}, {S(d), S(d), S(d)}});
  }
  return rows;
}

std::vector<Sizes> layer_norm_sizes(const OpCall& call) {
  const CheckedSizes& input = call.tensor(0).sizes;
  const CheckedSizes shape = call.integers("normalized_shape");
  const int64_t batch = batch_dims(call, call.tensor(0));
  TORCH_CHECK(
      batch >= 0 && SizesRef(input).slice(batch) == SizesRef(shape),
      "[aten.native_layer_norm.default] expected an input whose last "
      "dimensions are normalized_shape=",
      SizesRef(shape),
      ", but got one of shape ",
      SizesRef(input));
  CheckedSizes moments = input;
  std::fill(moments.begin() + batch, moments.end(), 1);
  return {input, moments, moments};
}

// native_layer_norm_backward(grad, input, normalized_shape, mean, rstd,
//   weight?, bias?, output_mask) -> grad_input, grad_weight, grad_bias
Rows layer_norm_backward_rows(const OpCall& call) {
  const Placement sum = P(ReduceOp::Sum);
  Rows rows;
  for (int64_t d = 0; d < batch_dims(call, call.tensor(1)); ++d) {
    rows.push_back({{S(d), S(d), S(d), S(d), R, R}, {S(d), sum, sum}});
  }
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back({{P(op), R, R, R, R, R}, {P(op), P(op), P(op)}});
  }
  return rows;
}

std::vector<Sizes> layer_norm_backward_sizes(const OpCall& call) {
  const CheckedSizes shape = call.integers("normalized_shape");
  return {call.tensor(1).sizes, shape, shape};
}

// nll_loss_forward(self[n, c], target[n], weight?, reduction, ignore_index)
//   -> output, total_weight
// The mean is decomposed into a sum and a division before it comes here.
Rows nll_loss_rows(const OpCall& call) {
  const int64_t reduction = call.integer("reduction");
  Rows rows;
  if (call.tensor(0).dim() != 2) {
    return rows;
  }
  if (reduction == at::Reduction::None) {
    rows.push_back({{S(0), S(0), R}, {S(0), R}});
  } else if (reduction == at::Reduction::Sum) {
    const Placement sum = P(ReduceOp::Sum);
    rows.push_back({{S(0), S(0), R}, {sum, sum}});
  }
  return rows;
}

// nll_loss_backward(grad, self, target, weight?, reduction, ignore_index,
//   total_weight) -> grad_self: does not read self's values, and is linear in
// grad.
Rows nll_loss_backward_rows(const OpCall& call) {
  const int64_t reduction = call.integer("reduction");
  Rows rows;
  for (const Placement& total : total_weight_placements(call)) {
    if (call.tensor(1).dim() == 2) {
      rows.push_back(
          {{reduction == at::Reduction::None ? S(0) : R, S(0), S(0), R, total},
           {S(0)}});
    }
    for (const ReduceOp op : kLinearReductions) {
      rows.push_back({{P(op), R, R, R, total}, {P(op)}});
    }
  }
  return rows;
}

}  // namespace

void add_nn_rules(RuleTable& table) {
  table.add({"aten::_softmax", "aten::_log_softmax"}, rule_of(dimwise_rows));
  // Its meta kernel is made of ops that have none.
  table.add(
      "aten::_safe_softmax",
      rule_of(dimwise_rows, [](const OpCall& call) -> std::vector<Sizes> {
        return {call.tensor(0).sizes};
      }));
  table.add(
      {"aten::_softmax_backward_data", "aten::_log_softmax_backward_data"},
      rule_of(softmax_backward_rows));
  table.add("aten::glu", rule_of(dimwise_rows));
  table.add("aten::glu_backward", rule_of(dimwise_rows, [](const OpCall& call) {
              return std::vector<Sizes>{call.tensor(1).sizes};
            }));
  table.add(
      "aten::native_layer_norm", rule_of(layer_norm_rows, layer_norm_sizes));
  table.add(
      "aten::native_layer_norm_backward",
      rule_of(layer_norm_backward_rows, layer_norm_backward_sizes));
  add_loss_rules(table);
  Rule nll_loss = rule_of(nll_loss_rows);
  nll_loss.checked_arguments = {"target"};
  table.add("aten::nll_loss_forward", nll_loss);
  table.add("aten::nll_loss_backward", rule_of(nll_loss_backward_rows));
}

}  // namespace tessera::detail
