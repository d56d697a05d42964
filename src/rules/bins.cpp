// Counting and searching: into which bin a value falls.
#include <utility>

#include "rules/layer_families.h"
#include "rules/rows.h"

namespace tessera::detail {
namespace {

// Counts of parts add up. The bounds are given: where they follow from the
// values they are found before rules are asked.
Rows histc_rows(const OpCall& call) {
  Rows rows;
  if (call.argument("min").toScalar().toDouble() ==
      call.argument("max").toScalar().toDouble()) {
    return rows;
  }
  for (int64_t d = 0; d < call.tensor(0).dim(); ++d) {
    rows.push_back({{S(d)}, {P(ReduceOp::Sum)}, Needs::NonEmpty});
  }
  return rows;
}

// histogram(self, bins, weight?, density) -> hist, edges. Densities are
// divided by the count of the whole.
Rows histogram_rows(const OpCall& call) {
  const size_t operands = operand_count(call);
  const bool edges_follow = call.has("range") && call.is_none("range");
  Rows rows;
  if (call.boolean("density") || edges_follow) {
    return rows;
  }
  for (int64_t d = 0; d < call.tensor(0).dim(); ++d) {
    Row row({}, {P(ReduceOp::Sum), R}, Needs::NonEmpty);
    row.inputs.assign(operands, S(d));
    if (operands == 3) {
      row.inputs[1] = R;  // the edges
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<Sizes> histogram_sizes(const OpCall& call) {
  const int64_t bins = operand_count(call) == 3 ? call.tensor(1).sizes[0] - 1
                                                : call.integer("bins");
  return {CheckedSizes{bins}, CheckedSizes{bins + 1}};
}

// bincount(self, weights?, minlength): made of this one, with room for all.
Rows bincount_rows(const OpCall& call) {
  if (call.integer("minlength") == 0) {
    return {};
  }
  return {{{S(0), S(0)}, {P(ReduceOp::Sum)}}};
}

// bucketize(self, boundaries), isin(elements, test_elements): each value by
// itself.
Rows each_value_rows(const OpCall& call) {
  Rows rows;
  for (int64_t d = 0; d < call.tensor(0).dim(); ++d) {
    Row row = uniform_row(call, R, S(d));
    row.inputs[0] = S(d);
    rows.push_back(std::move(row));
  }
  return rows;
}

// Of boundaries in parts the numbers below a value add up.
Rows bucketize_rows(const OpCall& call) {
  Rows rows = each_value_rows(call);
  rows.push_back({{R, S(0)}, {P(ReduceOp::Sum)}});
  return rows;
}

// searchsorted(sorted[..., n], self[..., m], sorter?): either one sequence for
// all values, or one for each row.
Rows searchsorted_rows(const OpCall& call) {
  const TensorArg& sequence = call.tensor(0);
  const TensorArg& values = call.tensor(1);
  Rows rows;
  for (int64_t d = 0; d < values.dim(); ++d) {
    const bool last = d == values.dim() - 1;
    const Placement of = sequence.dim() == 1 || last ? R : S(d);
    rows.push_back({{of, S(d), of}, {S(d)}});
  }
  if (!call.tensor(2).defined) {
    rows.push_back({{S(sequence.dim() - 1), R, R}, {P(ReduceOp::Sum)}});
  }
  return rows;
}

}  // namespace

void add_bin_rules(RuleTable& table) {
  table.add("aten::histc", rule_of(histc_rows, [](const OpCall& call) {
              return std::vector<Sizes>{CheckedSizes{call.integer("bins")}};
            }));
  table.add("aten::histogram", rule_of(histogram_rows, histogram_sizes));
  Rule bincount = rule_of(bincount_rows, [](const OpCall& call) {
    return std::vector<Sizes>{CheckedSizes{call.integer("minlength")}};
  });
  bincount.checked_arguments = {"self"};
  table.add("aten::bincount", bincount);
  table.add(
      "aten::bucketize.Tensor", rule_of(bucketize_rows, [](const OpCall& call) {
        return std::vector<Sizes>{call.tensor(0).sizes};
      }));
  table.add("aten::isin.Tensor_Tensor", rule_of(each_value_rows));
  table.add(
      "aten::searchsorted.Tensor",
      rule_of(searchsorted_rows, [](const OpCall& call) {
        return std::vector<Sizes>{call.tensor(1).sizes};
      }));
}

}  // namespace tessera::detail
