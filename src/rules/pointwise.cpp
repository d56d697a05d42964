#include "rules/pointwise.h"

#include <algorithm>

namespace tessera::detail {
namespace {

// The shape that the operands broadcast to.
CheckedSizes broadcast_sizes(const OpCall& call, size_t operands) {
  int64_t ndim = 0;
  for (size_t i = 0; i < operands; ++i) {
    ndim = std::max(ndim, call.tensor(i).dim());
  }
  CheckedSizes sizes(ndim, 1);
  for (size_t i = 0; i < operands; ++i) {
    const CheckedSizes& operand = call.tensor(i).sizes;
    const size_t missing = sizes.size() - operand.size();
    for (size_t d = 0; d < operand.size(); ++d) {
      if (operand[d] != 1) {
        sizes[missing + d] = operand[d];
      }
    }
  }
  return sizes;
}

// Where an operand lies when dimension `dim` of the result is sharded.
Placement operand_placement(
    const TensorArg& operand, int64_t dim, const CheckedSizes& sizes) {
  const int64_t own =
      dim - (static_cast<int64_t>(sizes.size()) - operand.dim());
  const bool has_it =
      operand.defined && own >= 0 && operand.sizes[own] == sizes[dim];
  return has_it ? S(own) : R;
}

}  // namespace

Rows pointwise_rows(const OpCall& call) {
  const size_t operands = operand_count(call);
  const CheckedSizes sizes = broadcast_sizes(call, operands);
  Rows rows;
  for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
    Row row = uniform_row(call, R, S(d));
    for (size_t i = 0; i < operands; ++i) {
      row.inputs[i] = operand_placement(call.tensor(i), d, sizes);
    }
    rows.push_back(std::move(row));
  }
  return place_outs(call, std::move(rows));
}

const Rule& pointwise_rule() {
  static const Rule rule{
      .rows = pointwise_rows,
      .ignores_numbers = true,
      .elementwise = true,
  };
  return rule;
}

void add_pointwise_rules(RuleTable& table) {
  // ATen tags `equal` as pointwise, but it answers with one bool for all
  // elements: only for replicated operands.
  table.add(
      "aten::equal",
      rule_of(
          [](const OpCall&) { return Rows{}; },
          [](const OpCall&) { return std::vector<Sizes>{CheckedSizes{}}; }));

  // Elementwise ops that ATen does not tag, or not in all overloads, or not yet
  // in 2.11, in the order of their names.
  table.add(
      {
          "aten::__irshift__",
          "aten::__lshift__",
          "aten::__rshift__",
          "aten::_add_relu",
          "aten::_add_relu_",
          "aten::_dirichlet_grad",
          "aten::_masked_scale",
          "aten::_prelu_kernel",
          "aten::_prelu_kernel_backward",
          "aten::_standard_gamma_grad",
          "aten::abs_",
          "aten::add",
          "aten::bitwise_and",
          "aten::bitwise_left_shift",
          "aten::bitwise_or",
          "aten::bitwise_right_shift",
          "aten::bitwise_xor",
          "aten::celu",
          "aten::celu_",
          "aten::complex",
          "aten::copysign_",
          "aten::div",
          "aten::elu",
          "aten::elu_",
          "aten::eq_",
          "aten::fill",
          "aten::fill_.Scalar",
          "aten::gcd_",
          "aten::ge_",
          "aten::gelu",
          "aten::gelu_",
          "aten::gt_",
          "aten::hardshrink",
          "aten::hardsigmoid",
          "aten::hardsigmoid_",
          "aten::hardswish",
          "aten::hardswish_",
          "aten::hardtanh",
          "aten::hardtanh_",
          "aten::heaviside_",
          "aten::isin.Tensor_Scalar",
          "aten::isin.Tensor_Scalar_out",
          "aten::isinf",
          "aten::isnan",
          "aten::lcm_",
          "aten::le_",
          "aten::leaky_relu",
          "aten::leaky_relu_",
          "aten::log_sigmoid_backward",
          "aten::log_sigmoid_forward",
          "aten::logit_backward",
          "aten::lt_",
          "aten::mish",
          "aten::mish_",
          "aten::mul",
          "aten::ne_",
          "aten::polar",
          "aten::rrelu_with_noise_backward",
          "aten::rsub",
          "aten::selu_",
          "aten::softplus",
          "aten::softshrink",
          "aten::sub",
          "aten::threshold",
          "aten::threshold_",
          "aten::xlogy_",
      },
      pointwise_rule());

  // Integers are not divided by zero.
  Rule division = pointwise_rule();
  division.checked_arguments = {"other"};
  division.checks_integers_only = true;
  table.add(
      {
          "aten::div.Scalar_mode",
          "aten::div.Scalar_mode_out",
          "aten::div.Tensor_mode",
          "aten::div.out_mode",
          "aten::div_.Scalar_mode",
          "aten::div_.Tensor_mode",
          "aten::floor_divide",
          "aten::floor_divide_",
          "aten::fmod",
          "aten::fmod_",
          "aten::remainder",
          "aten::remainder_",
      },
      division);
  add_linear_rules(table);
}

}  // namespace tessera::detail
