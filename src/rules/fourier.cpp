// Fourier transforms: dimensions that are not transformed may be sharded.
#include <utility>

#include "rules/layer_families.h"
#include "rules/rows.h"

namespace tessera::detail {
namespace {

// _fft_*(self, dim, ...): linear.
Rows fourier_rows(const OpCall& call) {
  Rows rows = rows_outside(
      call, call.dimensions("dim", call.tensor(0).dim()), [&](int64_t d) {
        Row row = uniform_row(call, S(d), S(d));
        row.needs = Needs::NonEmpty;
        return row;
      });
  pass_reductions(rows, call, kLinearReductions);
  return rows;
}

int64_t last_transformed(const OpCall& call) {
  return call.dimensions("dim", call.tensor(0).dim()).back();
}

std::vector<Sizes> transformed_sizes(const OpCall& call) {
  return {call.tensor(0).sizes};
}

std::vector<Sizes> real_to_complex_sizes(const OpCall& call) {
  CheckedSizes sizes = call.tensor(0).sizes;
  if (call.boolean("onesided")) {
    auto& last = sizes[last_transformed(call)];
    last = last / 2 + 1;
  }
  return {sizes};
}

std::vector<Sizes> complex_to_real_sizes(const OpCall& call) {
  CheckedSizes sizes = call.tensor(0).sizes;
  sizes[last_transformed(call)] = call.integer("last_dim_size");
  return {sizes};
}

}  // namespace

void add_fourier_rules(RuleTable& table) {
  table.add("aten::_fft_c2c", rule_of(fourier_rows, transformed_sizes));
  table.add("aten::_fft_r2c", rule_of(fourier_rows, real_to_complex_sizes));
  table.add("aten::_fft_c2r", rule_of(fourier_rows, complex_to_real_sizes));
}

}  // namespace tessera::detail
