// Linear algebra: what an op does with the matrices in the last dimensions it
// does for each index of the others, which may be sharded. The matrices
// themselves are not cut: their factors need the whole.
#include <algorithm>
#include <utility>

#include "rules/layer_families.h"
#include "rules/rows.h"

namespace tessera::detail {
namespace {

// How many of each operand's dimensions are the matrix's, or the vector's.
using Cores = std::vector<int64_t>;

// The dimensions before them, which broadcast.
int64_t batch_ndim(const OpCall& call, const Cores& cores) {
  int64_t dims = 0;
  for (size_t i = 0; i < cores.size(); ++i) {
    dims = std::max(dims, call.tensor(i).dim() - cores[i]);
  }
  return dims;
}

// The placement of operand `i` if dimension `dim` of the batch is sharded.
Placement own_placement(
    const OpCall& call, const Cores& cores, size_t i, int64_t dim) {
  const TensorArg& tensor = call.tensor(i);
  const int64_t own = dim - (batch_ndim(call, cores) - tensor.dim() + cores[i]);
  return own >= 0 && tensor.sizes[own] != 1 ? S(own) : R;
}

// An op that looks for errors itself would find them on only one rank.
bool raises_alone(const OpCall& call) {
  return call.has("check_errors") && call.boolean("check_errors");
}

// Results have the dimensions of the whole batch.
Rows batch_rows(const OpCall& call, const Cores& cores) {
  Rows rows;
  if (raises_alone(call)) {
    return rows;
  }
  for (int64_t d = 0; d < batch_ndim(call, cores); ++d) {
    Row row = uniform_row(call, R, S(d));
    row.needs = Needs::NonEmpty;
    bool cut = false;
    for (size_t i = 0; i < cores.size(); ++i) {
      row.inputs[i] = own_placement(call, cores, i, d);
      cut |= row.inputs[i].is_shard();
    }
    if (cut) {
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

// Ops that solve for the columns of operand `right`: each column by itself, and
// linear in them.
Rows solving_rows(const OpCall& call, const Cores& cores, size_t right) {
  Rows rows = batch_rows(call, cores);
  if (raises_alone(call) || cores[right] != 2 ||
      (call.has("left") && !call.boolean("left"))) {
    return rows;
  }
  const auto add = [&](const Placement& in, const Placement& out, Needs needs) {
    Row row = uniform_row(call, R, R);
    row.inputs[right] = in;
    row.outputs[0] = out;
    row.needs = needs;
    rows.push_back(std::move(row));
  };
  const int64_t own = call.tensor(right).dim() - 1;
  add(S(own), S(batch_ndim(call, cores) + 1), Needs::NonEmpty);
  for (const ReduceOp op : kLinearReductions) {
    add(P(op), P(op), Needs::Nothing);
  }
  return rows;
}

Rule solving_rule(Cores cores, size_t right) {
  return rule_of([cores = std::move(cores), right](const OpCall& call) {
    return solving_rows(call, cores, right);
  });
}

Rule solving_rule(Cores cores, size_t right, SizesFunction sizes) {
  Rule rule = solving_rule(std::move(cores), right);
  rule.output_sizes = std::move(sizes);
  return rule;
}

Rule batch_rule(Cores cores) {
  return rule_of([cores = std::move(cores)](const OpCall& call) {
    return batch_rows(call, cores);
  });
}

Rule batch_rule(Cores cores, SizesFunction sizes) {
  Rule rule = batch_rule(std::move(cores));
  rule.output_sizes = std::move(sizes);
  return rule;
}

// An op that raises where a rank has a value that it does not take.
Rule checked(Rule rule, const char* argument) {
  rule.checked_arguments = {argument};
  return rule;
}

// The batch of both operands, and `core` after it.
CheckedSizes broadcast_batch(
    const OpCall& call, const Cores& cores, CheckedSizes core) {
  CheckedSizes sizes(batch_ndim(call, cores), 1);
  for (size_t i = 0; i < cores.size(); ++i) {
    const TensorArg& tensor = call.tensor(i);
    const int64_t own = tensor.dim() - cores[i];
    for (int64_t d = 0; d < own; ++d) {
      int64_t& size = sizes[sizes.length() - own + d];
      size = tensor.sizes[d] == 1 ? size : tensor.sizes[d];
    }
  }
  sizes.insert(sizes.end(), core.begin(), core.end());
  return sizes;
}

std::vector<Sizes> matrix_sizes(const OpCall& call) {
  return {call.tensor(0).sizes};
}

// linalg_eig(self) -> values, vectors
std::vector<Sizes> eigen_sizes(const OpCall& call) {
  const CheckedSizes& self = call.tensor(0).sizes;
  return {self.without_last(1), self};
}

std::vector<Sizes> eigenvalue_sizes(const OpCall& call) {
  return {call.tensor(0).sizes.without_last(1)};
}

// linalg_pinv(self[..., m, n], atol[...]?, rtol[...]?) -> [..., n, m]
std::vector<Sizes> pinv_sizes(const OpCall& call) {
  const CheckedSizes& self = call.tensor(0).sizes;
  return {
      broadcast_batch(call, {2, 0, 0}, {self.from_end(1), self.from_end(2)})};
}

// geqrf(self[..., m, n]) -> a[..., m, n], tau[..., min(m, n)]
std::vector<Sizes> geqrf_sizes(const OpCall& call) {
  const CheckedSizes& self = call.tensor(0).sizes;
  CheckedSizes tau = self.without_last(1);
  tau.back() = std::min(tau.back(), self.back());
  return {self, tau};
}

std::vector<Sizes> solve_triangular_sizes(const OpCall& call) {
  const CheckedSizes& right = call.tensor(1).sizes;
  return {broadcast_batch(call, {2, 2}, right.slice(right.length() - 2, 2))};
}

// cholesky_solve(self, factor)
std::vector<Sizes> cholesky_solve_sizes(const OpCall& call) {
  const CheckedSizes& right = call.tensor(0).sizes;
  return {broadcast_batch(call, {2, 2}, right.slice(right.length() - 2, 2))};
}

// _linalg_solve_ex(A, B) -> result, LU, pivots, info: the last three are only
// of A, whose batch may be the smaller one. B may be vectors.
Rows solve_rows(const OpCall& call) {
  const TensorArg& a = call.tensor(0);
  const TensorArg& b = call.tensor(1);
  const bool vectors = b.dim() == 1 || (b.dim() + 1 == a.dim() &&
                                        b.sizes == a.sizes.without_last(1));
  const Cores cores{2, vectors ? 1 : 2};
  Rows rows = solving_rows(call, cores, 1);
  for (Row& row : rows) {
    const Placement of_a = row.inputs[0];
    row.outputs = {row.outputs[0], of_a, of_a, of_a};
  }
  return place_outs(call, std::move(rows));
}

// least_squares(self, b) -> solution, residuals?, rank?, singular_values?: the
// operands have one batch, and b may be vectors.
Rows least_squares_rows(const OpCall& call) {
  const bool vectors = call.tensor(1).dim() < call.tensor(0).dim();
  Rows rows = solving_rows(call, {2, vectors ? 1 : 2}, 1);
  const bool residuals = call.boolean("residuals");
  // They are squares.
  std::erase_if(rows, [&](const Row& row) {
    return residuals && row.outputs[0].is_partial();
  });
  for (Row& row : rows) {
    const bool by_batch = row.inputs[0].is_shard();
    const Placement solution = row.outputs[0];
    // [..., n, k] and [..., k].
    const Placement columns =
        solution.is_shard() ? S(solution.dim() - 1) : solution;
    const auto of_matrices = [&](const char* name) {
      return by_batch && call.boolean(name) ? solution : R;
    };
    row.outputs = {
        solution,
        residuals ? (by_batch ? solution : columns) : R,
        of_matrices("rank"),
        of_matrices("singular_values")};
  }
  return rows;
}

// _linalg_svd(A, full_matrices, compute_uv) -> U, S, Vh, and
// _linalg_eigh(A, UPLO, compute_v) -> values, vectors: vectors that are not
// asked for are empty.
Rows spectral_rows(const OpCall& call) {
  Rows rows = batch_rows(call, {2});
  const bool svd = call.has("compute_uv");
  if (call.boolean(svd ? "compute_uv" : "compute_v")) {
    return rows;
  }
  for (Row& row : rows) {
    const Placement values = row.outputs[0];
    if (svd) {
      row.outputs = {R, values, R};
    } else {
      row.outputs = {values, R};
    }
  }
  return rows;
}

// ATen's kernel takes as many pivots as it needs, whatever there is.
void check_pivots(const OpCall& call) {
  const CheckedSizes& lu = call.tensor(0).sizes;
  CheckedSizes wanted = lu.without_last(1);
  wanted.back() = std::min(lu.from_end(2), lu.from_end(1));
  TORCH_CHECK(
      !call.boolean("unpack_pivots") || call.tensor(1).sizes == wanted,
      "[aten.lu_unpack.default] expected pivots of shape ",
      SizesRef(wanted),
      " for an LU of shape ",
      SizesRef(lu),
      ", but got ",
      SizesRef(call.tensor(1).sizes));
}

// lu_unpack(LU, pivots) -> P, L, U: what is not asked for is empty.
Rows lu_unpack_rows(const OpCall& call) {
  check_pivots(call);
  Rows rows = batch_rows(call, {2, 1});
  for (Row& row : rows) {
    const Placement batch = row.outputs[0];
    const Placement data = call.boolean("unpack_data") ? batch : R;
    row.outputs = {call.boolean("unpack_pivots") ? batch : R, data, data};
  }
  return rows;
}

// linalg_cross(self, other, dim): linear in each operand.
Rows cross_rows(const OpCall& call) {
  const TensorArg& self = call.tensor(0);
  const TensorArg& other = call.tensor(1);
  Rows rows;
  if (self.dim() != other.dim()) {
    return rows;
  }
  const int64_t dim = call.dimension("dim", self.dim());
  for (int64_t d = 0; d < self.dim(); ++d) {
    const int64_t size = std::max(self.sizes[d], other.sizes[d]);
    if (d != dim && size != 1) {
      rows.push_back(
          {{self.sizes[d] == size ? S(d) : R,
            other.sizes[d] == size ? S(d) : R},
           {S(d)}});
    }
  }
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back({{P(op), R}, {P(op)}});
    rows.push_back({{R, P(op)}, {P(op)}});
  }
  return rows;
}

}  // namespace

void add_linalg_rules(RuleTable& table) {
  table.add(
      {"aten::linalg_cholesky_ex",
       "aten::linalg_inv_ex",
       "aten::linalg_ldl_factor_ex",
       "aten::linalg_lu",
       "aten::linalg_lu_factor_ex",
       "aten::linalg_qr",
       "aten::_linalg_det",
       "aten::_linalg_slogdet"},
      batch_rule({2}));
  table.add(
      {"aten::linalg_matrix_exp", "aten::cholesky_inverse"},
      batch_rule({2}, matrix_sizes));
  table.add("aten::geqrf", batch_rule({2}, geqrf_sizes));
  // These raise where they do not converge, or where a matrix is none that they
  // take, on the rank that has it: all ranks hear of it.
  table.add(
      {"aten::_linalg_svd", "aten::_linalg_eigh"},
      checked(rule_of(spectral_rows), "A"));
  table.add(
      "aten::linalg_pinv.atol_rtol_tensor",
      checked(batch_rule({2, 0, 0}, pinv_sizes), "self"));
  table.add("aten::cholesky", checked(batch_rule({2}, matrix_sizes), "self"));
  table.add("aten::linalg_eig", checked(batch_rule({2}, eigen_sizes), "self"));
  table.add(
      "aten::_linalg_eigvals",
      checked(batch_rule({2}, eigenvalue_sizes), "self"));

  table.add(
      "aten::linalg_householder_product", batch_rule({2, 1}, matrix_sizes));
  table.add("aten::lu_unpack", checked(rule_of(lu_unpack_rows), "LU_pivots"));
  table.add(
      {"aten::linalg_lu_solve", "aten::linalg_ldl_solve"},
      checked(solving_rule({2, 1, 2}, 2), "pivots"));
  table.add("aten::_cholesky_solve_helper", batch_rule({2, 2}, matrix_sizes));
  table.add(
      "aten::cholesky_solve", solving_rule({2, 2}, 0, cholesky_solve_sizes));
  table.add("aten::triangular_solve", solving_rule({2, 2}, 0));
  table.add(
      "aten::linalg_solve_triangular",
      solving_rule({2, 2}, 1, solve_triangular_sizes));
  table.add("aten::_linalg_solve_ex", Rule{solve_rows});
  // Raises where a matrix does not have full rank, or a value is no number.
  Rule least_squares{least_squares_rows};
  least_squares.checked_arguments = {"self", "b"};
  table.add("tessera::least_squares", least_squares);
  table.add("aten::linalg_cross", rule_of(cross_rows));
}

}  // namespace tessera::detail
