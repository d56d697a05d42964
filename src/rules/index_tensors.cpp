// Indexing by a list of tensors, x[i, :, j], as torch and NumPy have it: the
// indices broadcast to one shape, whose dimensions stand in the result where
// the indexed ones stood, or in front if those were not neighbours.
#include <algorithm>
#include <optional>

#include "rules/index.h"
#include "rules/rows.h"

namespace tessera::detail {
namespace {

// How the dimensions of self[indices] follow from those of `self`.
struct Indexing {
  const OpCall& call;
  int64_t ndim = 0;          // of self
  int64_t listed = 0;        // of the indices, None included
  int64_t first = -1;        // that is not None
  int64_t given = 0;         // that are not None
  CheckedSizes index_shape;  // what the indices broadcast to
  bool together = true;      // the indexed dimensions are neighbours

  // Of a call whose tensors are self, `count` indices, and others.
  Indexing(const OpCall& c, size_t count)
      : call(c), ndim(c.tensor(0).dim()), listed(static_cast<int64_t>(count)) {
    for (int64_t i = 0; i < listed; ++i) {
      const TensorArg& index = at(i);
      if (!index.defined) {
        continue;
      }
      if (first < 0) {
        first = i;
      }
      together &= i == first + given;
      broadcast(index.sizes);
      ++given;
    }
  }

  const TensorArg& at(int64_t i) const { return call.tensor(1 + i); }

  void broadcast(const CheckedSizes& sizes) {
    if (sizes.size() > index_shape.size()) {
      index_shape.insert(
          index_shape.begin(), sizes.size() - index_shape.size(), 1);
    }
    const size_t missing = index_shape.size() - sizes.size();
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] != 1) {
        index_shape[missing + d] = sizes[d];
      }
    }
  }

  // Masks are made into integers before rules are asked.
  bool holds() const {
    bool integers = given > 0 && listed <= ndim;
    for (int64_t i = 0; i < listed; ++i) {
      integers &= at(i).dtype != c10::kBool && at(i).dtype != c10::kByte;
    }
    return integers;
  }

  bool is_indexed(int64_t dim) const { return dim < listed && at(dim).defined; }
  int64_t index_ndim() const {
    return static_cast<int64_t>(index_shape.size());
  }
  int64_t result_dim() const { return ndim - given + index_ndim(); }
  // Where the dimensions of the indices begin in the result.
  int64_t index_begin() const { return together ? first : 0; }
  // Where a dimension that is not indexed stands in the result.
  int64_t place_of(int64_t dim) const {
    int64_t place = 0;
    for (int64_t d = 0; d < dim; ++d) {
      place += is_indexed(d) ? 0 : 1;
    }
    return place + (!together || dim > first ? index_ndim() : 0);
  }
};

// Where an operand lies if dimension `dim`, of `size`, of the `ndim` that it
// broadcasts to is sharded; nothing where it does not fit.
std::optional<Placement> operand_placement(
    const TensorArg& operand, int64_t dim, int64_t ndim, int64_t size) {
  const int64_t own = dim - (ndim - operand.dim());
  if (own < 0 || (operand.sizes[own] == 1 && size != 1)) {
    return R;
  }
  if (operand.sizes[own] != size) {
    return std::nullopt;
  }
  return S(own);
}

// A row whose indices are whole: self, each index, the values if there are any.
Row row_of(
    const Indexing& indexing,
    const Placement& self,
    std::optional<Placement> values,
    const Placement& output) {
  Row row({self}, {output});
  row.inputs.append(indexing.listed, R);
  if (values.has_value()) {
    row.inputs.push_back(*values);
  }
  return row;
}

// Cuts the indices of a row along dimension `dim` of what they broadcast to.
Row with_sharded_indices(const Indexing& indexing, int64_t dim, Row row) {
  for (int64_t i = 0; i < indexing.listed; ++i) {
    if (indexing.at(i).defined) {
      row.inputs[1 + i] = operand_placement(
                              indexing.at(i),
                              dim,
                              indexing.index_ndim(),
                              indexing.index_shape[dim])
                              .value_or(R);
    }
  }
  return row;
}

// index(self, indices)
Rows index_rows(const OpCall& call) {
  const Indexing indexing(call, operand_count(call) - 1);
  Rows rows;
  if (!indexing.holds()) {
    return rows;
  }
  for (int64_t d = 0; d < indexing.ndim; ++d) {
    if (!indexing.is_indexed(d)) {
      rows.push_back(
          row_of(indexing, S(d), std::nullopt, S(indexing.place_of(d))));
    }
  }
  for (int64_t d = 0; d < indexing.index_ndim(); ++d) {
    const Placement shard = S(indexing.index_begin() + d);
    rows.push_back(with_sharded_indices(
        indexing, d, row_of(indexing, R, std::nullopt, shard)));
  }
  for (const ReduceOp op : kEveryReduction) {
    rows.push_back(row_of(indexing, P(op), std::nullopt, P(op)));
  }
  return rows;
}

// index_put(self, indices, values, accumulate)
Rows index_put_rows(const OpCall& call) {
  const size_t operands = operand_count(call);
  const TensorArg& values = call.tensor(operands - 1);
  const Indexing indexing(call, operands - 2);
  Rows rows;
  if (!indexing.holds()) {
    return rows;
  }
  const auto lie = [&](int64_t place, int64_t size) {
    return operand_placement(values, place, indexing.result_dim(), size);
  };
  for (int64_t d = 0; d < indexing.ndim; ++d) {
    const auto own = indexing.is_indexed(d)
                         ? std::nullopt
                         : lie(indexing.place_of(d), call.tensor(0).sizes[d]);
    if (own.has_value()) {
      rows.push_back(row_of(indexing, S(d), own, S(d)));
    }
  }
  if (!call.boolean("accumulate")) {
    // Of values for one place any may win, on each rank another: a pending sum
    // would mix them.
    return rows;
  }
  const Placement sum = P(ReduceOp::Sum);
  for (int64_t d = 0; d < indexing.index_ndim(); ++d) {
    const auto own = lie(indexing.index_begin() + d, indexing.index_shape[d]);
    if (own.has_value()) {
      rows.push_back(
          with_sharded_indices(indexing, d, row_of(indexing, sum, own, sum)));
    }
  }
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back(row_of(indexing, P(op), P(op), P(op)));
  }
  return rows;
}

}  // namespace

void add_index_tensor_rules(RuleTable& table) {
  table.add(
      "aten::index.Tensor",
      {.rows = index_rows, .checked_arguments = {"indices"}});
  table.add(
      {"aten::index_put", "aten::index_put_"},
      {.rows = index_put_rows, .checked_arguments = {"indices"}});
}

}  // namespace tessera::detail
