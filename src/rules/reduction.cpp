// Reductions over dimensions. A sharded dimension that is reduced leaves a
// pending reduction; one that is kept stays sharded.
#include <optional>
#include <utility>

#include "rules/dimwise.h"
#include "rules/rows.h"
#include "rules/rule_table.h"

namespace tessera::detail {
namespace {

// How ops say which dimensions they reduce: every argument is optional in some
// of them, and none means all dimensions.
struct Reduced {
  std::vector<bool> dims;
  bool keepdim = false;

  int64_t ndim() const { return static_cast<int64_t>(dims.size()); }

  // Where dimension `dim`, which is kept, stands in the result.
  int64_t in_result(int64_t dim) const {
    if (keepdim) {
      return dim;
    }
    int64_t kept = 0;
    for (int64_t d = 0; d < dim; ++d) {
      kept += dims[d] ? 0 : 1;
    }
    return kept;
  }

  CheckedSizes result_sizes(SizesRef sizes) const {
    CheckedSizes result;
    for (int64_t d = 0; d < ndim(); ++d) {
      if (!dims[d]) {
        result.push_back(sizes[d]);
      } else if (keepdim) {
        result.push_back(1);
      }
    }
    return result;
  }
};

Reduced reduced(const OpCall& call) {
  const int64_t ndim = call.tensor(0).dim();
  const bool keepdim = call.has("keepdim") && call.boolean("keepdim");
  return {marked(call.dimensions("dim", ndim), ndim), keepdim};
}

std::vector<Sizes> reduced_sizes(const OpCall& call) {
  return {reduced(call).result_sizes(call.tensor(0).sizes)};
}

// Kept dimensions stay sharded; reduced ones leave `pending`, one a result, if
// there is such a reduction.
Rows reduction_rows(
    const OpCall& call,
    c10::ArrayRef<ReduceOp> pending,
    Needs needs = Needs::Nothing) {
  const Reduced over = reduced(call);
  Rows rows;
  for (int64_t d = 0; d < over.ndim(); ++d) {
    if (!over.dims[d]) {
      rows.push_back(uniform_row(call, S(d), S(over.in_result(d))));
    } else if (!pending.empty()) {
      Row row = uniform_row(call, S(d), R);
      for (size_t i = 0; i < pending.size(); ++i) {
        row.outputs[i] = P(pending[i]);
      }
      row.needs = needs;
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

// Integers are summed and multiplied as int64 unless told otherwise.
c10::ScalarType accumulated_dtype(const OpCall& call) {
  const auto dtype = call.tensor(0).dtype;
  const bool exact = c10::isIntegralType(dtype, /*includeBool=*/true);
  return dtype_argument(call, "dtype", exact ? c10::kLong : dtype);
}

bool terms_survive(const OpCall& call) {
  const bool has_out = operand_count(call) != call.tensor_count();
  const auto dtype = call.tensor(0).dtype;
  return sum_survives(dtype, accumulated_dtype(call)) &&
         (!has_out || sum_survives(dtype, call.tensors().back().dtype));
}

Rows sum_rows(const OpCall& call) {
  Rows rows = reduction_rows(call, ReduceOp::Sum);
  if (terms_survive(call)) {
    pass_reductions(rows, call, kLinearReductions);
  }
  return rows;
}

Rows prod_rows(const OpCall& call) {
  Rows rows = reduction_rows(call, ReduceOp::Product);
  if (terms_survive(call)) {
    pass_reductions(rows, call, ReduceOp::Product);
  }
  return rows;
}

Rows extremum_rows(const OpCall& call, ReduceOp op) {
  Rows rows = reduction_rows(call, op, Needs::NonEmpty);
  pass_reductions(rows, call, op);
  return rows;
}

Rows max_rows(const OpCall& call) { return extremum_rows(call, ReduceOp::Max); }
Rows min_rows(const OpCall& call) { return extremum_rows(call, ReduceOp::Min); }

// An empty list of dimensions reduces none here, unlike everywhere else.
bool reduces_nothing(const OpCall& call) {
  return call.has("dim") && !call.is_none("dim") &&
         call.integers("dim").empty();
}

Rows any_rows(const OpCall& call) {
  return reduces_nothing(call) ? Rows{} : reduction_rows(call, ReduceOp::Max);
}

Rows all_rows(const OpCall& call) {
  return reduces_nothing(call) ? Rows{} : reduction_rows(call, ReduceOp::Min);
}

// Results that are no reduction of the shards' results: only kept dimensions.
Rows kept_rows(const OpCall& call) { return reduction_rows(call, {}); }

std::vector<Sizes> pair_sizes(const OpCall& call) {
  const CheckedSizes sizes = reduced_sizes(call)[0];
  return {sizes, sizes};
}

}  // namespace

void add_reduction_rules(RuleTable& table) {
  table.add({"aten::sum", "aten::sum.dim_IntList"}, rule_of(sum_rows));
  table.add(
      {"aten::nansum", "aten::count_nonzero"},
      rule_of(
          [](const OpCall& call) {
            return reduction_rows(call, ReduceOp::Sum);
          },
          reduced_sizes));
  table.add("aten::prod", rule_of(prod_rows, reduced_sizes));
  table.add({"aten::prod.dim_int", "aten::prod.int_out"}, rule_of(prod_rows));

  table.add("aten::amax", rule_of(max_rows));
  table.add("aten::amin", rule_of(min_rows));
  table.add(
      {"aten::max", "aten::max.unary_out"}, rule_of(max_rows, reduced_sizes));
  table.add(
      {"aten::min", "aten::min.unary_out"}, rule_of(min_rows, reduced_sizes));
  table.add("aten::aminmax", rule_of([](const OpCall& call) {
              return reduction_rows(
                  call, {ReduceOp::Min, ReduceOp::Max}, Needs::NonEmpty);
            }));

  table.add("aten::any", rule_of(any_rows));
  table.add("aten::all", rule_of(all_rows));

  // Positions along the reduced dimension, or in the flattened tensor.
  table.add(
      {"aten::max.dim",
       "aten::max.dim_max",
       "aten::min.dim",
       "aten::min.dim_min",
       "aten::argmax",
       "aten::argmin"},
      rule_of(kept_rows));
  table.add(
      {"aten::median", "aten::nanmedian", "aten::logsumexp"},
      rule_of(kept_rows, reduced_sizes));
  table.add(
      {"aten::median.dim",
       "aten::median.dim_values",
       "aten::nanmedian.dim",
       "aten::nanmedian.dim_values",
       "aten::mode",
       "aten::kthvalue"},
      rule_of(kept_rows, pair_sizes));

  // The diagonal of a shard is not a part of the diagonal.
  table.add(
      "aten::trace",
      rule_of(
          [](const OpCall&) { return Rows{}; },
          [](const OpCall&) { return std::vector<Sizes>{CheckedSizes{}}; }));

  add_dimwise_rules(table);
}

}  // namespace tessera::detail
