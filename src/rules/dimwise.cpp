#include "rules/dimwise.h"

#include "rules/rows.h"

namespace tessera::detail {
namespace {

// A scan adds up: pending sums stay pending where no precision is lost.
Rows cumsum_rows(const OpCall& call) {
  Rows rows = dimwise_rows(call);
  const auto dtype = call.tensor(0).dtype;
  const bool exact = c10::isIntegralType(dtype, /*includeBool=*/true);
  const bool in_place = call.schema().is_mutable();
  auto result = dtype_argument(call, "dtype", exact ? c10::kLong : dtype);
  if (in_place) {
    result = call.tensors().back().dtype;
  }
  if (sum_survives(dtype, result) && !(in_place && exact)) {
    pass_reductions(rows, call, kLinearReductions);
  }
  return rows;
}

std::vector<Sizes> same_sizes(const OpCall& call) {
  return {call.schema().returns().size(), call.tensor(0).sizes};
}

}  // namespace

Rows dimwise_rows(const OpCall& call) {
  const int64_t along = call.dimension("dim", call.tensor(0).dim());
  return rows_outside(
      call, {along}, [&](int64_t d) { return uniform_row(call, S(d), S(d)); });
}

void add_dimwise_rules(RuleTable& table) {
  table.add(
      {"aten::sort", "aten::topk", "aten::cumprod", "aten::cumprod_"},
      rule_of(dimwise_rows));
  table.add({"aten::cumsum", "aten::cumsum_"}, rule_of(cumsum_rows));
  table.add(
      {"aten::logcumsumexp", "aten::cummax", "aten::cummin"},
      rule_of(dimwise_rows, same_sizes));
}

}  // namespace tessera::detail
