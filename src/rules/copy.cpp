// Copies, casts, and tensors made after another's example.
#include <utility>

#include "rules/pointwise.h"
#include "rules/rows.h"
#include "rules/rule_table.h"

namespace tessera::detail {
namespace {

// Whether the reduction of converted terms is the converted reduction.
bool reduction_survives(ReduceOp op, c10::ScalarType from, c10::ScalarType to) {
  const bool by_order = op == ReduceOp::Min || op == ReduceOp::Max;
  if (sum_survives(from, to)) {
    // Complex numbers have no order.
    return from == to || !(by_order && c10::isComplexType(to));
  }
  // Rounding keeps the order of numbers. Of float8 some make NaN of numbers
  // that are too large for them.
  const bool ordered = !c10::isComplexType(from) && from != c10::kBool &&
                       c10::isFloatingType(to) && !c10::isFloat8Type(to);
  return ordered && by_order;
}

void pass_converted(
    Rows& rows, const OpCall& call, c10::ScalarType from, c10::ScalarType to) {
  for (const ReduceOp op : kEveryReduction) {
    if (reduction_survives(op, from, to)) {
      rows.push_back(uniform_row(call, P(op), P(op)));
    }
  }
}

// clone, detach and the like: the result is laid out as the operand.
Rows identity_rows(const OpCall& call) {
  Rows rows;
  for (int64_t d = 0; d < call.tensor(0).dim(); ++d) {
    rows.push_back(uniform_row(call, S(d), S(d)));
  }
  pass_reductions(rows, call, kEveryReduction);
  return rows;
}

Rows to_copy_rows(const OpCall& call) {
  Rows rows;
  for (int64_t d = 0; d < call.tensor(0).dim(); ++d) {
    rows.push_back(uniform_row(call, S(d), S(d)));
  }
  const auto from = call.tensor(0).dtype;
  auto to = dtype_argument(call, "dtype", from);
  if (operand_count(call) != call.tensor_count()) {
    to = call.tensors().back().dtype;
  }
  pass_converted(rows, call, from, to);
  return rows;
}

// copy_(self, src): `src` broadcasts to `self`, whose values are not read.
Rows copy_rows(const OpCall& call) {
  Rows rows = pointwise_rows(call);
  Rows pending;
  pass_converted(pending, call, call.tensor(1).dtype, call.tensor(0).dtype);
  pending = place_outs(call, std::move(pending));
  rows.insert(rows.end(), pending.begin(), pending.end());
  return rows;
}

// zeros_like and the like read no values: where a reduction is pending, the
// result is whole.
void forget_reductions(Rows& rows, const OpCall& call) {
  for (const ReduceOp op : kEveryReduction) {
    rows.push_back(uniform_row(call, P(op), R));
  }
}

Rows like_rows(const OpCall& call) {
  Rows rows;
  for (int64_t d = 0; d < call.tensor(0).dim(); ++d) {
    rows.push_back(uniform_row(call, S(d), S(d)));
  }
  forget_reductions(rows, call);
  return rows;
}

// new_zeros(self, size): laid out as `self` where it has its shape; otherwise
// whole, and `self` may have any placement.
Rows new_rows(const OpCall& call) {
  const TensorArg& self = call.tensor(0);
  if (call.integers("size") == self.sizes) {
    return like_rows(call);
  }
  Rows rows;
  for (int64_t d = 0; d < self.dim(); ++d) {
    rows.push_back(uniform_row(call, S(d), R));
  }
  forget_reductions(rows, call);
  return rows;
}

c10::IValue local_stride(const OpCall& call, const LocalView& view) {
  const CheckedSizes strides =
      local_strides(view.output_shape(0), call.integers("stride"));
  return std::vector<int64_t>(strides.begin(), strides.end());
}

}  // namespace

void add_copy_rules(RuleTable& table) {
  table.add(
      {"aten::clone",
       "aten::detach",
       "aten::detach_copy",
       "aten::alias",
       "aten::alias_copy",
       "aten::lift",
       "aten::lift_fresh",
       "aten::lift_fresh_copy"},
      rule_of(identity_rows));
  table.add("aten::_to_copy", rule_of(to_copy_rows));

  // One number for the caller, who must not get another on each rank.
  table.add(
      "aten::_local_scalar_dense",
      rule_of(
          [](const OpCall&) { return Rows{}; },
          [](const OpCall&) { return std::vector<Sizes>{CheckedSizes{}}; }));

  Rule copy{copy_rows};
  copy.elementwise = true;
  table.add({"aten::copy", "aten::copy_"}, copy);

  Rule like = rule_of(like_rows);
  like.ignores_numbers = true;
  table.add(
      {"aten::empty_like",
       "aten::zeros_like",
       "aten::ones_like",
       "aten::full_like"},
      like);

  Rule made = rule_of(new_rows);
  made.ignores_numbers = true;
  made.local_arguments = {local_sizes("size")};
  table.add(
      {"aten::new_empty",
       "aten::new_zeros",
       "aten::new_ones",
       "aten::new_full"},
      made);
  made.local_arguments.push_back({"stride", local_stride});
  table.add("aten::new_empty_strided", made);
}

}  // namespace tessera::detail
