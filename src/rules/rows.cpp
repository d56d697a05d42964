#include "rules/rows.h"

#include <utility>

namespace tessera::detail {

std::vector<Placement> whole_placements() {
  std::vector<Placement> placements{R};
  for (const ReduceOp op : kEveryReduction) {
    placements.push_back(P(op));
  }
  return placements;
}

size_t operand_count(const OpCall& call) {
  size_t outs = 0;
  for (const auto& argument : call.schema().arguments()) {
    outs += argument.is_out() ? 1 : 0;
  }
  return call.tensor_count() - outs;
}

Rows place_outs(const OpCall& call, Rows rows) {
  const size_t operands = operand_count(call);
  const size_t outs = call.tensor_count() - operands;
  for (Row& row : rows) {
    // Another row says all, or too little, which whoever prices it finds.
    if (row.inputs.size() == operands && row.outputs.size() >= outs) {
      row.inputs.append(row.outputs.begin(), row.outputs.begin() + outs);
    }
  }
  return rows;
}

Rule rule_of(RowsFunction rows) { return Rule{std::move(rows)}; }

Rule rule_of(RowsFunction rows, SizesFunction output_sizes) {
  Rule rule = rule_of(std::move(rows));
  rule.output_sizes = std::move(output_sizes);
  return rule;
}

Row uniform_row(
    const OpCall& call, const Placement& inputs, const Placement& outputs) {
  Row row({}, {});
  row.inputs.assign(operand_count(call), inputs);
  row.outputs.assign(call.schema().returns().size(), outputs);
  return row;
}

void pass_reductions(Rows& rows, const OpCall& call, Reductions reductions) {
  for (const ReduceOp op : reductions) {
    rows.push_back(uniform_row(call, P(op), P(op)));
  }
}

bool adds_up(c10::ScalarType dtype) {
  return !c10::isFloat8Type(dtype) && !c10::isBarebonesUnsignedType(dtype);
}

bool sum_survives(c10::ScalarType from, c10::ScalarType to) {
  if (from == to) {
    return true;
  }
  if (c10::isFloat8Type(from) || c10::isFloat8Type(to)) {
    return false;  // nothing adds them, or promotes them
  }
  const bool inexact = c10::isFloatingType(from) || c10::isComplexType(from);
  return inexact && c10::promoteTypes(from, to) == to;
}

c10::ScalarType dtype_argument(
    const OpCall& call, const char* name, c10::ScalarType otherwise) {
  if (!call.has(name) || call.is_none(name)) {
    return otherwise;
  }
  return call.argument(name).toScalarType();
}

std::vector<bool> marked(SizesRef dims, int64_t ndim) {
  std::vector<bool> marks(ndim, false);
  for (const int64_t dim : dims) {
    if (dim >= 0 && dim < ndim) {
      marks[dim] = true;
    }
  }
  return marks;
}

LocalArgument local_sizes(const char* name) {
  return {
      name, [](const OpCall&, const LocalView& view) {
        const CheckedSizes shape = view.output_shape(0);
        return c10::IValue(std::vector<int64_t>(shape.begin(), shape.end()));
      }};
}

}  // namespace tessera::detail
