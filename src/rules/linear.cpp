// Elementwise ops that are linear in some operands: a reduction that is pending
// in those stays pending in the result.
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "rules/pointwise.h"
#include "rules/rule_table.h"

namespace tessera::detail {
namespace {

// One letter an operand: "PR" says that the first may be pending while the
// second is replicated; in "P1" the second is one number besides.
struct Linear {
  std::vector<std::string_view> patterns;
  // Division turns integers into floating-point numbers.
  bool keeps_integers = true;
};

// Whether pending terms of `dtype` may go through this call. Integers wrap
// around and bools saturate, so that their sum must be taken in the dtype that
// they have; floating-point terms must not lose precision.
bool dtype_survives(
    const OpCall& call, const TensorArg& pending, bool keeps_integers) {
  const auto dtype = pending.dtype;
  const bool exact = c10::isIntegralType(dtype, /*includeBool=*/true);
  if (exact && !keeps_integers) {
    return false;
  }
  const auto& arguments = call.schema().arguments();
  for (const auto& argument : arguments) {
    // A number may promote integers. `alpha` may not, ATen checks it.
    if (exact && argument.type()->kind() == c10::TypeKind::NumberType &&
        argument.name() != "alpha") {
      return false;
    }
  }
  const bool writes = call.schema().is_mutable();
  for (const TensorArg& other : call.tensors()) {
    if (other.defined && exact && other.dtype != dtype) {
      return false;
    }
  }
  // What is written comes first (in place) or last (out=).
  const TensorArg& written = operand_count(call) == call.tensor_count()
                                 ? call.tensor(0)
                                 : call.tensors().back();
  return !writes || sum_survives(dtype, written.dtype);
}

void add_rows(
    Rows& rows, const OpCall& call, std::string_view pattern, ReduceOp op) {
  Row row = uniform_row(call, R, P(op));
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == 'P') {
      row.inputs[i] = P(op);
    }
  }
  rows.push_back(std::move(row));
}

bool survives(
    const OpCall& call, std::string_view pattern, bool keeps_integers) {
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == 'P' &&
        !dtype_survives(call, call.tensor(i), keeps_integers)) {
      return false;
    }
    if (pattern[i] == '1' && call.tensor(i).dim() != 0) {
      return false;
    }
  }
  return true;
}

Rule elementwise_rule(RowsFunction rows) {
  Rule rule = pointwise_rule();
  rule.rows = std::move(rows);
  return rule;
}

Rows linear_rows(const Linear& linear, const OpCall& call) {
  Rows rows;
  for (const auto pattern : linear.patterns) {
    if (survives(call, pattern, linear.keeps_integers)) {
      for (const ReduceOp op : kLinearReductions) {
        add_rows(rows, call, pattern, op);
      }
    }
  }
  Rows all = pointwise_rows(call);
  rows = place_outs(call, std::move(rows));
  all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

Rule linear_rule(Linear linear) {
  return elementwise_rule([linear = std::move(linear)](const OpCall& call) {
    return linear_rows(linear, call);
  });
}

Rule dividing(Rule rule, const char* divisor) {
  rule.divisors = {divisor};
  return rule;
}

// max(max(a, b)) = max(max(a), max(b)), and so for min.
Rule lattice_rule(ReduceOp op) {
  return elementwise_rule([op](const OpCall& call) {
    Rows rows = pointwise_rows(call);
    if (survives(call, "PP", /*keeps_integers=*/true)) {
      rows.push_back(place_outs(call, {uniform_row(call, P(op), P(op))})[0]);
    }
    return rows;
  });
}

// The largest becomes the smallest; not of integers, where the smallest one's
// negative is itself and an unsigned 1 becomes 255.
Rows neg_rows(const OpCall& call) {
  Rows rows = linear_rows({{"P"}}, call);
  if (!c10::isIntegralType(call.tensor(0).dtype, /*includeBool=*/true)) {
    const auto max = P(ReduceOp::Max);
    const auto min = P(ReduceOp::Min);
    const Rows turned = place_outs(
        call, {uniform_row(call, max, min), uniform_row(call, min, max)});
    rows.insert(rows.end(), turned.begin(), turned.end());
  }
  return rows;
}

// Functions that never decrease, exactly and for NaN too: the largest stays the
// largest.
Rows monotone_rows(const OpCall& call) {
  Rows rows = pointwise_rows(call);
  Rows passed;
  pass_reductions(passed, call, {ReduceOp::Max, ReduceOp::Min});
  passed = place_outs(call, std::move(passed));
  rows.insert(rows.end(), passed.begin(), passed.end());
  return rows;
}

// Zero is the reduction of zeros, whichever it is.
Rows zero_rows(const OpCall& call) {
  Rows rows = pointwise_rows(call);
  if (call.schema().name() == "aten::zero_") {
    pass_reductions(rows, call, kEveryReduction);
  }
  return rows;
}

// Filling with zeros is linear in what is filled. The value decides, so that it
// belongs in the cache's key.
Rule masked_fill_rule() {
  Rule rule = elementwise_rule([](const OpCall& call) {
    Rows rows = pointwise_rows(call);
    const auto value = call.argument("value").toScalar();
    if (value.equal(0) && survives(call, "PR", /*keeps_integers=*/true)) {
      for (const ReduceOp op : kLinearReductions) {
        Rows linear;
        add_rows(linear, call, "PR", op);
        rows.push_back(place_outs(call, std::move(linear))[0]);
      }
    }
    return rows;
  });
  rule.ignores_numbers = false;
  return rule;
}

}  // namespace

void add_linear_rules(RuleTable& table) {
  // Unary.
  table.add("aten::neg", elementwise_rule(neg_rows));
  table.add(
      {"aten::neg_",
       "aten::_conj_physical",
       "aten::conj_physical",
       "aten::conj_physical_",
       "aten::mul.Scalar",
       "aten::mul_.Scalar",
       "aten::deg2rad",
       "aten::deg2rad_",
       "aten::rad2deg",
       "aten::rad2deg_"},
      linear_rule({{"P"}}));
  table.add(
      {"aten::div.Scalar", "aten::div_.Scalar"},
      dividing(linear_rule({{"P"}, /*keeps_integers=*/false}), "other"));

  // Linear in both operands together.
  table.add(
      {"aten::add.Tensor",
       "aten::add_.Tensor",
       "aten::add.out",
       "aten::sub.Tensor",
       "aten::sub_.Tensor",
       "aten::sub.out",
       "aten::rsub.Tensor",
       "aten::lerp.Scalar",
       "aten::lerp_.Scalar",
       "aten::lerp.Scalar_out",
       "aten::fill_.Tensor"},
      linear_rule({{"PP"}}));

  // Linear in each operand by itself. In place, the first is written and must
  // be as pending as the result.
  table.add({"aten::mul.Tensor", "aten::mul.out"}, linear_rule({{"PR", "RP"}}));
  table.add("aten::mul_.Tensor", linear_rule({{"PR"}}));
  // Among many divisors some may be 0, where 3 / 0 is infinite but the terms
  // 5 / 0 - 2 / 0 are not a number.
  table.add(
      {"aten::div.Tensor", "aten::div_.Tensor", "aten::div.out"},
      dividing(linear_rule({{"P1"}, /*keeps_integers=*/false}), "other"));

  table.add(
      {"aten::masked_fill.Scalar",
       "aten::masked_fill.Scalar_out",
       "aten::masked_fill_.Scalar"},
      masked_fill_rule());

  // Three operands.
  table.add(
      {"aten::where.self", "aten::where.self_out"}, linear_rule({{"RPP"}}));
  table.add(
      {"aten::masked_fill.Tensor",
       "aten::masked_fill.Tensor_out",
       "aten::masked_fill_.Tensor"},
      linear_rule({{"PRP"}}));
  table.add(
      {"aten::lerp.Tensor", "aten::lerp_.Tensor", "aten::lerp.Tensor_out"},
      linear_rule({{"PPR"}}));
  table.add({"aten::addcmul", "aten::addcmul_"}, linear_rule({{"PPR", "PRP"}}));
  table.add(
      {"aten::addcdiv", "aten::addcdiv_"},
      dividing(linear_rule({{"PP1"}}), "tensor2"));

  // Gradients: linear in the gradient of the result, which comes first.
  table.add(
      {"aten::elu_backward",
       "aten::gelu_backward",
       "aten::hardshrink_backward",
       "aten::hardsigmoid_backward",
       "aten::hardswish_backward",
       "aten::hardtanh_backward",
       "aten::leaky_relu_backward",
       "aten::native_dropout_backward",
       "aten::sigmoid_backward",
       "aten::silu_backward",
       "aten::softplus_backward",
       "aten::softshrink_backward",
       "aten::tanh_backward",
       "aten::threshold_backward"},
      linear_rule({{"PR"}}));

  table.add(
      {"aten::maximum", "aten::max.other", "aten::max.out"},
      lattice_rule(ReduceOp::Max));
  table.add(
      {"aten::minimum", "aten::min.other", "aten::min.out"},
      lattice_rule(ReduceOp::Min));
  table.add(
      {"aten::ceil",
       "aten::ceil_",
       "aten::floor",
       "aten::floor_",
       "aten::relu",
       "aten::relu_",
       "aten::round",
       "aten::round_",
       "aten::trunc",
       "aten::trunc_"},
      elementwise_rule(monotone_rows));
  table.add({"aten::zero", "aten::zero_"}, elementwise_rule(zero_rows));
}

}  // namespace tessera::detail
