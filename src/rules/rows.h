// How the rule files write rows: short names for placements, and the parts that
// many rules share.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/rule.h"

namespace tessera::detail {

inline const Placement R;
inline Placement S(int64_t dim) { return Shard(dim); }
inline Placement P(ReduceOp op) { return Partial(op); }

// Ops that only move elements leave every pending reduction pending.
inline constexpr std::array kEveryReduction = {
    ReduceOp::Sum,
    ReduceOp::Avg,
    ReduceOp::Product,
    ReduceOp::Min,
    ReduceOp::Max};
// Linear ops leave these pending.
inline constexpr std::array kLinearReductions = {ReduceOp::Sum, ReduceOp::Avg};

// The placements of a tensor of which the op reads only the size: whole on
// every rank, be it the value or a term of it.
std::vector<Placement> whole_placements();

using Reductions = c10::ArrayRef<ReduceOp>;
using RowsFunction = std::function<Rows(const OpCall&)>;
using SizesFunction = std::function<std::vector<Sizes>(const OpCall&)>;

// The tensors that an op reads or writes in place; `out=` tensors come after
// them and are placed as the results are.
size_t operand_count(const OpCall& call);

// Completes rows that were written only for the operands: each `out=` tensor
// has the placement of its result. The table of rules does it for every rule.
Rows place_outs(const OpCall& call, Rows rows);

// A rule of these rows.
Rule rule_of(RowsFunction rows);
// The same for ops that have no meta kernel.
Rule rule_of(RowsFunction rows, SizesFunction output_sizes);

// A row that gives all operands one placement and all results another.
Row uniform_row(
    const OpCall& call, const Placement& inputs, const Placement& outputs);

// Appends, for each of `reductions`, the row P->P for all operands.
void pass_reductions(Rows& rows, const OpCall& call, Reductions reductions);

// Whether ATen adds numbers of this type: not float8, nor unsigned ones beyond
// bytes.
bool adds_up(c10::ScalarType dtype);

// Whether the sum of values of `from`, each converted to `to`, is the converted
// sum: floating-point numbers that do not lose precision, or no conversion.
bool sum_survives(c10::ScalarType from, c10::ScalarType to);

// The dtype argument `name` of the call; `otherwise` where it is None or
// absent.
c10::ScalarType dtype_argument(
    const OpCall& call, const char* name, c10::ScalarType otherwise);

// True at each of `dims` of a tensor with `ndim` dimensions. Dimensions that
// it does not have are left to ATen to refuse.
std::vector<bool> marked(SizesRef dims, int64_t ndim);

// A row for each dimension of the first tensor that is not among `dims`.
template <typename RowFor>
Rows rows_outside(const OpCall& call, SizesRef dims, const RowFor& row_for) {
  const int64_t ndim = call.tensor(0).dim();
  const auto inside = marked(dims, ndim);
  Rows rows;
  for (int64_t d = 0; d < ndim; ++d) {
    if (!inside[d]) {
      rows.push_back(row_for(d));
    }
  }
  return rows;
}

// An argument whose local value is the local shape of the first result.
LocalArgument local_sizes(const char* name);

}  // namespace tessera::detail
