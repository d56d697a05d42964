// Products of matrices and vectors. What they have in common is in einsum.cpp.
#include <utility>

#include "rules/einsum.h"
#include "rules/rows.h"
#include "rules/rule_table.h"

namespace tessera::detail {
namespace {

// ATen checks operands in the kernel of these, and they have no meta kernel.
Rule with_sizes(Rule rule, SizesFunction output_sizes) {
  rule.output_sizes = std::move(output_sizes);
  return rule;
}

void check_vectors(const OpCall& call) {
  TORCH_CHECK(
      call.tensor(0).dim() == 1 && call.tensor(1).dim() == 1 &&
          call.tensor(0).sizes == call.tensor(1).sizes,
      "[",
      op_display_name(call.schema()),
      "] expected two vectors of one length, but got tensors of shapes ",
      SizesRef(call.tensor(0).sizes),
      " and ",
      SizesRef(call.tensor(1).sizes));
}

std::vector<Sizes> dot_sizes(const OpCall& call) {
  check_vectors(call);
  return {CheckedSizes{}};
}

std::vector<Sizes> addbmm_sizes(const OpCall& call) {
  const TensorArg& left = call.tensor(1);
  const TensorArg& right = call.tensor(2);
  TORCH_CHECK(
      left.dim() == 3 && right.dim() == 3 && left.sizes[0] == right.sizes[0] &&
          left.sizes[2] == right.sizes[1],
      "[aten.addbmm.default] expected batches of matrices that can be "
      "multiplied, but got shapes ",
      SizesRef(left.sizes),
      " and ",
      SizesRef(right.sizes));
  return {CheckedSizes{left.sizes[1], right.sizes[2]}};
}

// Of an empty matrix ATen's addmv returns what is added as it is, without
// broadcasting it to the result's size.
Rule addmv_rule() {
  Rule rule = biased_einsum_rule("mk,k->m");
  rule.rows = [all = std::move(rule.rows)](const OpCall& call) {
    Rows rows = all(call);
    const TensorArg& added = call.tensor(0);
    if (added.dim() != 1 || added.sizes[0] != call.tensor(1).sizes[0]) {
      for (Row& row : rows) {
        row.needs = Needs::NonEmpty;
      }
    }
    return rows;
  };
  return rule;
}

}  // namespace

void add_matrix_rules(RuleTable& table) {
  table.add("aten::mm", einsum_rule("mk,kn->mn"));
  table.add("aten::bmm", einsum_rule("bmk,bkn->bmn"));
  table.add("aten::mv", einsum_rule("mk,k->m"));
  table.add(
      {"aten::dot", "aten::vdot"}, with_sizes(einsum_rule("k,k->"), dot_sizes));

  table.add({"aten::addmm", "aten::addmm_"}, biased_einsum_rule("mk,kn->mn"));
  table.add({"aten::addmv", "aten::addmv_"}, addmv_rule());
  table.add({"aten::addr", "aten::addr_"}, biased_einsum_rule("m,n->mn"));
  table.add(
      {"aten::baddbmm", "aten::baddbmm_"}, biased_einsum_rule("bmk,bkn->bmn"));
  table.add(
      {"aten::addbmm", "aten::addbmm_"},
      with_sizes(biased_einsum_rule("bmk,bkn->mn"), addbmm_sizes));
}

}  // namespace tessera::detail
