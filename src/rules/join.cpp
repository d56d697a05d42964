// Ops that put tensors together or repeat and reorder their elements along a
// dimension: the others may be sharded, and reductions stay pending.
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/accumulate.h>

#include <utility>

#include "rules/index.h"
#include "rules/rows.h"
#include "rules/rule_table.h"
#include "rules/view.h"

namespace tessera::detail {
namespace {

// ATen lets cat skip tensors of shape [0], whatever the others' shapes are.
bool skipped_by_cat(const TensorArg& tensor) {
  return tensor.dim() == 1 && tensor.sizes[0] == 0;
}

// All tensors must have one dtype for terms to be added after conversion.
bool one_dtype(const OpCall& call) {
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.dtype != call.tensor(0).dtype) {
      return false;
    }
  }
  return true;
}

Row joined_row(
    const OpCall& call,
    const Placement& input,
    const Placement& output,
    bool may_skip) {
  Row row = uniform_row(call, input, output);
  for (size_t i = 0; may_skip && i < row.inputs.size(); ++i) {
    if (skipped_by_cat(call.tensor(i))) {
      row.inputs[i] = R;
    }
  }
  return row;
}

Rows cat_rows(const OpCall& call) {
  int64_t ndim = -1;
  for (size_t i = 0; i < operand_count(call); ++i) {
    if (!skipped_by_cat(call.tensor(i))) {
      ndim = call.tensor(i).dim();
      break;
    }
  }
  Rows rows;
  if (ndim < 0) {
    return rows;
  }
  const int64_t dim = call.dimension("dim", ndim);
  for (int64_t d = 0; d < ndim; ++d) {
    if (d != dim) {
      rows.push_back(joined_row(call, S(d), S(d), /*may_skip=*/true));
    }
  }
  for (const ReduceOp op : kEveryReduction) {
    if (one_dtype(call)) {
      rows.push_back(joined_row(call, P(op), P(op), /*may_skip=*/true));
    }
  }
  return rows;
}

Rows stack_rows(const OpCall& call) {
  const int64_t ndim = call.tensor(0).dim();
  const int64_t dim = call.dimension("dim", ndim + 1);
  Rows rows;
  for (int64_t d = 0; d < ndim; ++d) {
    rows.push_back(uniform_row(call, S(d), S(d < dim ? d : d + 1)));
  }
  if (one_dtype(call)) {
    pass_reductions(rows, call, kEveryReduction);
  }
  return rows;
}

Rows repeat_rows(const OpCall& call) {
  const CheckedSizes repeats = call.integers("repeats");
  const int64_t added =
      static_cast<int64_t>(repeats.size()) - call.tensor(0).dim();
  Rows rows = moved_rows(call, [&](int64_t d) -> std::optional<int64_t> {
    const int64_t at = d + added;
    return at >= 0 && repeats[at] == 1 ? std::optional(at) : std::nullopt;
  });
  pass_reductions(rows, call, kEveryReduction);
  return rows;
}

// flip and roll: dimensions that are not named stay in order.
Rows reordered_rows(const OpCall& call, const std::vector<bool>& named) {
  Rows rows = moved_rows(call, [&](int64_t d) -> std::optional<int64_t> {
    return named[d] ? std::nullopt : std::optional(d);
  });
  pass_reductions(rows, call, kEveryReduction);
  return rows;
}

Rows flip_rows(const OpCall& call) {
  const int64_t ndim = call.tensor(0).dim();
  // No dims flip nothing, where dimensions() would read all of them.
  const CheckedSizes dims = call.integers("dims").empty()
                                ? CheckedSizes{}
                                : call.dimensions("dims", ndim);
  return reordered_rows(call, marked(dims, ndim));
}

Rows roll_rows(const OpCall& call) {
  const int64_t ndim = call.tensor(0).dim();
  CheckedSizes dims;
  // ATen looks only where there are elements, which some ranks may not have.
  const bool empty = c10::multiply_integers(call.tensor(0).sizes) == 0;
  for (const int64_t dim : call.integers("dims")) {
    if (!empty) {
      dims.push_back(c10::maybe_wrap_dim(dim, ndim));
    }
  }
  // Without dims the flattened tensor is rolled.
  return reordered_rows(
      call, dims.empty() ? std::vector<bool>(ndim, true) : marked(dims, ndim));
}

std::vector<Sizes> self_sizes(const OpCall& call) {
  return {call.tensor(0).sizes};
}

// `pad` holds two numbers a dimension, from the last dimension on.
Rows pad_rows(const OpCall& call) {
  const CheckedSizes pad = call.integers("pad");
  const int64_t ndim = call.tensor(0).dim();
  Rows rows = moved_rows(call, [&](int64_t d) -> std::optional<int64_t> {
    const auto at = static_cast<size_t>(2 * (ndim - 1 - d));
    const bool padded =
        at + 1 < pad.size() && (pad[at] != 0 || pad[at + 1] != 0);
    return padded ? std::nullopt : std::optional(d);
  });
  if (call.argument("value").toScalar().equal(0)) {
    pass_reductions(rows, call, kLinearReductions);
  }
  return rows;
}

// tril, triu: matrices stay whole, batches of them may be sharded.
Rows triangle_rows(const OpCall& call) {
  const int64_t matrix = call.tensor(0).dim() - 2;
  Rows rows = moved_rows(call, [matrix](int64_t d) -> std::optional<int64_t> {
    return d < matrix ? std::optional(d) : std::nullopt;
  });
  pass_reductions(rows, call, kLinearReductions);
  return rows;
}

}  // namespace

void add_join_rules(RuleTable& table) {
  table.add("aten::cat", rule_of(cat_rows));
  table.add({"aten::stack", "aten::_stack"}, rule_of(stack_rows));
  table.add("aten::repeat", rule_of(repeat_rows));
  table.add("aten::flip", rule_of(flip_rows, self_sizes));
  table.add("aten::roll", rule_of(roll_rows, self_sizes));
  table.add("aten::constant_pad_nd", rule_of(pad_rows));
  table.add(
      {"aten::tril", "aten::tril_", "aten::triu", "aten::triu_"},
      rule_of(triangle_rows));
  add_index_rules(table);
}

}  // namespace tessera::detail
