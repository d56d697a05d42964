// Fourier transforms and linear algebra: what an op does along some dimensions
// it does for each index of the others, which may be sharded.
#include <utility>

#include "rules/layer_families.h"
#include "rules/rows.h"

namespace tessera::detail {
namespace {

// _fft_*(self, dim, ...): linear.
Rows fourier_rows(const OpCall& call) {
  const int64_t ndim = call.tensor(0).dim();
  const auto transformed = marked(call.dimensions("dim", ndim), ndim);
  Rows rows;
  for (int64_t d = 0; d < ndim; ++d) {
    if (!transformed[d]) {
      Row row = uniform_row(call, S(d), S(d));
      row.needs = Needs::NonEmpty;
      rows.push_back(std::move(row));
    }
  }
  pass_reductions(rows, call, kLinearReductions);
  return rows;
}

int64_t last_transformed(const OpCall& call) {
  return call.dimensions("dim", call.tensor(0).dim()).back();
}

std::vector<Sizes> same_as_input(const OpCall& call) {
  return {call.tensor(0).sizes};
}

std::vector<Sizes> real_to_complex_sizes(const OpCall& call) {
  Sizes sizes = call.tensor(0).sizes;
  if (call.boolean("onesided")) {
    auto& last = sizes[last_transformed(call)];
    last = last / 2 + 1;
  }
  return {sizes};
}

std::vector<Sizes> complex_to_real_sizes(const OpCall& call) {
  Sizes sizes = call.tensor(0).sizes;
  sizes[last_transformed(call)] = call.integer("last_dim_size");
  return {sizes};
}

// Ops on the matrices in the last two dimensions of one tensor. An op that
// looks for errors itself would find them on one rank alone.
Rows matrix_batch_rows(const OpCall& call) {
  Rows rows;
  if (call.has("check_errors") && call.boolean("check_errors")) {
    return rows;
  }
  for (int64_t d = 0; d < call.tensor(0).dim() - 2; ++d) {
    Row row = uniform_row(call, S(d), S(d));
    row.needs = Needs::NonEmpty;
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

void add_batched_rules(RuleTable& table) {
  table.add("aten::_fft_c2c", rule_of(fourier_rows, same_as_input));
  table.add("aten::_fft_r2c", rule_of(fourier_rows, real_to_complex_sizes));
  table.add("aten::_fft_c2r", rule_of(fourier_rows, complex_to_real_sizes));

  table.add(
      {"aten::linalg_cholesky_ex",
       "aten::linalg_inv_ex",
       "aten::linalg_lu",
       "aten::linalg_lu_factor_ex",
       "aten::linalg_qr",
       "aten::_linalg_det",
       "aten::_linalg_slogdet"},
      rule_of(matrix_batch_rows));
  table.add(
      "aten::linalg_matrix_exp", rule_of(matrix_batch_rows, same_as_input));
  // These raise where they do not converge, on the rank that has the matrix:
  // all ranks hear of it.
  Rule iterative = rule_of(matrix_batch_rows);
  iterative.checked_arguments = {"A"};
  table.add({"aten::_linalg_svd", "aten::_linalg_eigh"}, iterative);
}

}  // namespace tessera::detail
