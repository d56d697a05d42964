// Distances between rows of two matrices, and products of three tensors.
#include <algorithm>
#include <utility>

#include "rules/layer_families.h"
#include "rules/rows.h"

namespace tessera::detail {
namespace {

// The dimensions before the matrices, which broadcast.
CheckedSizes batch_sizes(const TensorArg& matrices) {
  return matrices.sizes.without_last(2);
}

// Two batches broadcast, and two more dimensions.
CheckedSizes broadcast_sizes(
    const TensorArg& a, const TensorArg& b, int64_t rows, int64_t columns) {
  CheckedSizes sizes(std::max(a.dim(), b.dim()) - 2, 1);
  for (const TensorArg* tensor : {&a, &b}) {
    const CheckedSizes own = batch_sizes(*tensor);
    for (int64_t d = 0; d < own.length(); ++d) {
      if (own[d] != 1) {
        sizes[sizes.length() - own.length() + d] = own[d];
      }
    }
  }
  sizes.push_back(rows);
  sizes.push_back(columns);
  return sizes;
}

// _cdist_forward(x1[..., p, m], x2[..., r, m]) -> out[..., p, r]. Rows are for
// batches that are alike.
Rows distance_rows(const OpCall& call) {
  const int64_t ndim = call.tensor(0).dim();
  Rows rows;
  if (batch_sizes(call.tensor(0)) != batch_sizes(call.tensor(1))) {
    return rows;
  }
  for (int64_t d = 0; d < ndim - 2; ++d) {
    rows.push_back({{S(d), S(d)}, {S(d)}, Needs::NonEmpty});
  }
  rows.push_back({{S(ndim - 2), R}, {S(ndim - 2)}, Needs::NonEmpty});
  rows.push_back({{R, S(ndim - 2)}, {S(ndim - 1)}, Needs::NonEmpty});
  return rows;
}

std::vector<Sizes> distance_sizes(const OpCall& call) {
  const TensorArg& x1 = call.tensor(0);
  const TensorArg& x2 = call.tensor(1);
  return {
      broadcast_sizes(x1, x2, x1.sizes[x1.dim() - 2], x2.sizes[x2.dim() - 2])};
}

// _cdist_backward(grad[..., p, r], x1, x2, p, cdist) -> grad_x1
Rows distance_backward_rows(const OpCall& call) {
  const int64_t ndim = call.tensor(1).dim();
  const Placement row = S(ndim - 2);
  const Placement column = S(ndim - 1);
  Rows rows;
  if (batch_sizes(call.tensor(1)) != batch_sizes(call.tensor(2))) {
    return rows;
  }
  for (int64_t d = 0; d < ndim - 2; ++d) {
    rows.push_back({{S(d), S(d), S(d), S(d)}, {S(d)}, Needs::NonEmpty});
  }
  rows.push_back({{row, row, R, row}, {row}, Needs::NonEmpty});
  rows.push_back(
      {{column, R, row, column}, {P(ReduceOp::Sum)}, Needs::NonEmpty});
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back({{P(op), R, R, R}, {P(op)}});
  }
  return rows;
}

// Autograd sums what was broadcast.
std::vector<Sizes> distance_backward_sizes(const OpCall& call) {
  const TensorArg& x1 = call.tensor(1);
  const TensorArg& x2 = call.tensor(2);
  CheckedSizes sizes =
      broadcast_sizes(x1, x2, x1.sizes[x1.dim() - 2], x1.sizes.back());
  // Without distances ATen's kernel does not broadcast.
  const bool empty =
      c10::multiply_integers(sizes) == 0 || x2.sizes[x2.dim() - 2] == 0;
  return {empty ? x1.sizes : std::move(sizes)};
}

// _trilinear(i1, i2, i3, expand1, expand2, expand3, sumdim): each operand gets
// the dimensions that it lacks, all are multiplied, some dimensions are summed.
struct Trilinear {
  explicit Trilinear(const OpCall& c) : call(c) {
    const char* names[] = {"expand1", "expand2", "expand3"};
    ndim = call.tensor(0).dim() +
           static_cast<int64_t>(call.integers("expand1").size());
    for (size_t i = 0; i < 3; ++i) {
      lacks[i] = marked(call.integers(names[i]), ndim);
    }
    summed = marked(call.integers("sumdim"), ndim);
  }

  // The operand's own number of dimension `dim`; -1 if it lacks it.
  int64_t own(size_t operand, int64_t dim) const {
    if (lacks[operand][dim]) {
      return -1;
    }
    int64_t number = 0;
    for (int64_t d = 0; d < dim; ++d) {
      number += lacks[operand][d] ? 0 : 1;
    }
    return number;
  }

  int64_t size(int64_t dim) const {
    int64_t size = 1;
    for (size_t i = 0; i < 3; ++i) {
      const int64_t d = own(i, dim);
      if (d >= 0 && call.tensor(i).sizes[d] != 1) {
        size = call.tensor(i).sizes[d];
      }
    }
    return size;
  }

  const OpCall& call;
  int64_t ndim;
  std::vector<bool> lacks[3];
  std::vector<bool> summed;
};

Rows trilinear_rows(const OpCall& call) {
  const Trilinear product(call);
  Rows rows;
  int64_t kept = 0;
  for (int64_t d = 0; d < product.ndim; ++d) {
    const int64_t size = product.size(d);
    Row row({}, {product.summed[d] ? P(ReduceOp::Sum) : S(kept)});
    for (size_t i = 0; i < 3; ++i) {
      const int64_t own = product.own(i, d);
      const bool cut = own >= 0 && call.tensor(i).sizes[own] == size;
      row.inputs.push_back(cut ? S(own) : R);
    }
    row.needs = Needs::NonEmpty;
    kept += product.summed[d] ? 0 : 1;
    if (size != 1) {
      rows.push_back(std::move(row));
    }
  }
  for (const ReduceOp op : kLinearReductions) {
    for (size_t i = 0; i < 3; ++i) {
      Row row({R, R, R}, {P(op)});
      row.inputs[i] = P(op);
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::vector<Sizes> trilinear_sizes(const OpCall& call) {
  const Trilinear product(call);
  CheckedSizes sizes;
  for (int64_t d = 0; d < product.ndim; ++d) {
    if (!product.summed[d]) {
      sizes.push_back(product.size(d));
    }
  }
  return {sizes};
}

}  // namespace

void add_distance_rules(RuleTable& table) {
  table.add("aten::_cdist_forward", rule_of(distance_rows, distance_sizes));
  table.add(
      "aten::_cdist_backward",
      rule_of(distance_backward_rows, distance_backward_sizes));
  table.add("aten::_trilinear", rule_of(trilinear_rows, trilinear_sizes));
}

}  // namespace tessera::detail
