// Group norm, where groups of channels of one sample are normalised together,
// and batch norm by statistics that are given.
#include <c10/util/accumulate.h>

#include "rules/layer_families.h"
#include "rules/rows.h"

namespace tessera::detail {
namespace {

// How many samples, channels or groups a rank has: `name` counts them, along
// dimension `dim` of the input.
LocalArgument local_count(const char* name, size_t input, int64_t dim) {
  return {name, [=](const OpCall& call, const LocalView& view) {
            const auto held = local_range(
                call.integer(name),
                dim,
                view.mesh,
                view.inputs[input],
                view.position);
            return c10::IValue(held.size);
          }};
}

std::vector<LocalArgument> local_counts(size_t input) {
  return {
      local_count("N", input, 0),
      local_count("C", input, 1),
      local_count("group", input, 1)};
}

// native_group_norm(input, weight?, bias?, N, C, HxW, group, eps)
//   -> output, mean, rstd
Rows group_norm_rows(const OpCall& call) {
  return {
      {{S(0), R, R}, {S(0), S(0), S(0)}},
      // Whole groups of channels.
      {{S(1), S(0), S(0)},
       {S(1), S(1), S(1)},
       Needs::Even,
       call.integer("group")}};
}

// Of channels that are not whole groups a rank may hold what looks like some.
void check_groups(const OpCall& call) {
  const int64_t channels = call.integer("C");
  const int64_t groups = call.integer("group");
  TORCH_CHECK(
      groups > 0 && channels % groups == 0,
      "[",
      op_display_name(call.schema()),
      "] expected a number of channels that is divisible by the number of "
      "groups, but got ",
      channels,
      " channels and ",
      groups,
      " groups");
}

std::vector<Sizes> group_norm_sizes(const OpCall& call) {
  check_groups(call);
  const CheckedSizes& input = call.tensor(0).sizes;
  TORCH_CHECK(
      c10::multiply_integers(input) ==
          call.integer("N") * call.integer("C") * call.integer("HxW"),
      "[aten.native_group_norm.default] expected an input of N * C * HxW "
      "elements, but got one of shape ",
      SizesRef(input));
  const CheckedSizes moments{call.integer("N"), call.integer("group")};
  return {call.tensor(0).sizes, moments, moments};
}

// native_group_norm_backward(grad, input, mean, rstd, weight?, N, ...)
//   -> grad_input, grad_weight, grad_bias
Rows group_norm_backward_rows(const OpCall& call) {
  const Placement sum = P(ReduceOp::Sum);
  Rows rows{
      {{S(0), S(0), S(0), S(0), R}, {S(0), sum, sum}},
      {{S(1), S(1), S(1), S(1), S(0)},
       {S(1), S(0), S(0)},
       Needs::Even,
       call.integer("group")}};
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back({{P(op), R, R, R, R}, {P(op), P(op), P(op)}});
  }
  return rows;
}

std::vector<Sizes> group_norm_backward_sizes(const OpCall& call) {
  check_groups(call);
  const CheckedSizes channels{call.integer("C")};
  return {call.tensor(1).sizes, channels, channels};
}

// native_batch_norm(input, weight?, bias?, running_mean, running_var, training)
//   -> output, save_mean, save_invstd
// In training it is made of others, this one without training among them; the
// last two results are then empty.
Rows batch_norm_rows(const OpCall& call) {
  Rows rows;
  if (call.boolean("training")) {
    return rows;
  }
  for (int64_t d = 0; d < call.tensor(0).dim(); ++d) {
    const Placement channels = d == 1 ? S(0) : R;
    rows.push_back(
        {{S(d), channels, channels, channels, channels},
         {S(d), R, R},
         Needs::NonEmpty});
  }
  return rows;
}

std::vector<Sizes> batch_norm_sizes(const OpCall& call) {
  return {call.tensor(0).sizes, CheckedSizes{0}, CheckedSizes{0}};
}

}  // namespace

void add_group_norm_rules(RuleTable& table) {
  table.add(
      "aten::native_batch_norm", rule_of(batch_norm_rows, batch_norm_sizes));
  Rule forward{.rows = group_norm_rows, .output_sizes = group_norm_sizes};
  forward.local_arguments = local_counts(0);
  table.add("aten::native_group_norm", forward);
  Rule backward{
      .rows = group_norm_backward_rows,
      .output_sizes = group_norm_backward_sizes};
  backward.local_arguments = local_counts(1);
  table.add("aten::native_group_norm_backward", backward);
}

}  // namespace tessera::detail
