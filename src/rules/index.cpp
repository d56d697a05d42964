#include "rules/index.h"

#include <utility>

#include "rules/rows.h"

namespace tessera::detail {
namespace {

// index_select(self, dim, index)
Rows index_select_rows(const OpCall& call) {
  const int64_t ndim = call.tensor(0).dim();
  const int64_t dim = call.dimension("dim", ndim);
  Rows rows = rows_outside(
      call, {dim}, [](int64_t d) { return Row{{S(d), R}, {S(d)}}; });
  if (ndim > 0 && call.tensor(1).dim() == 1) {
    rows.push_back({{R, S(0)}, {S(dim)}});
  }
  for (const ReduceOp op : kEveryReduction) {
    rows.push_back({{P(op), R}, {P(op)}});
  }
  return rows;
}

std::vector<Sizes> index_select_sizes(const OpCall& call) {
  const TensorArg& index = call.tensor(1);
  CheckedSizes sizes = call.tensor(0).sizes;
  TORCH_CHECK_INDEX(
      index.dim() <= 1,
      "[aten.index_select.default] expected an index of one dimension, but got "
      "one of shape ",
      SizesRef(index.sizes));
  if (!sizes.empty()) {
    sizes[call.dimension("dim", call.tensor(0).dim())] =
        index.dim() == 0 ? 1 : index.sizes[0];
  }
  return {sizes};
}

// Dimensions other than `dim` of which all tensors have the same: there the op
// works on each slice by itself. Otherwise the index is shorter than the
// tensor, and their shards would not meet.
Rows slicewise_rows(const OpCall& call, int64_t dim) {
  Rows rows;
  const size_t operands = operand_count(call);
  for (int64_t d = 0; d < call.tensor(0).dim(); ++d) {
    bool alike = d != dim;
    for (size_t i = 1; i < operands && alike; ++i) {
      const CheckedSizes& sizes = call.tensor(i).sizes;
      alike = d < static_cast<int64_t>(sizes.size()) &&
              sizes[d] == call.tensor(0).sizes[d];
    }
    if (alike) {
      rows.push_back(uniform_row(call, S(d), S(d)));
    }
  }
  return rows;
}

// The part of the gathered dimension that this rank holds. A distributed tensor
// is whole: the offset is the layout's, not the caller's.
LocalArgument first(size_t tensor) {
  return {"first", [tensor](const OpCall& call, const LocalView& view) {
            const TensorArg& self = call.tensor(tensor);
            const int64_t dim = call.dimension("dim", self.dim());
            return self.dim() == 0 ? int64_t{0}
                                   : local_range(
                                         self.sizes[dim],
                                         dim,
                                         view.mesh,
                                         view.inputs[tensor],
                                         view.position)
                                         .begin;
          }};
}

LocalArgument size(size_t tensor) {
  return {"size", [tensor](const OpCall& call, const LocalView&) {
            const TensorArg& self = call.tensor(tensor);
            return self.dim() == 0
                       ? int64_t{1}
                       : self.sizes[call.dimension("dim", self.dim())];
          }};
}

// gather_part(self, dim, index): out[i][j] = self[index[i][j]][j] for dim 0.
Rows gather_rows(const OpCall& call) {
  const int64_t ndim = call.tensor(0).dim();
  const int64_t dim = call.dimension("dim", ndim);
  Rows rows = slicewise_rows(call, dim);
  if (ndim > 0 && call.tensor(1).dim() == ndim) {
    rows.push_back({{R, S(dim)}, {S(dim)}});
    if (adds_up(call.tensor(0).dtype)) {
      rows.push_back({{S(dim), R}, {MaskPartial(call.tensor(0).sizes, dim)}});
    }
  }
  for (const ReduceOp op : kEveryReduction) {
    rows.push_back({{P(op), R}, {P(op)}});
  }
  return rows;
}

// gather_part_backward(grad, dim, index, self): of `self` only the layout is
// read.
Rows gather_backward_rows(const OpCall& call) {
  const int64_t ndim = call.tensor(2).dim();
  const int64_t dim = call.dimension("dim", ndim);
  Rows rows = slicewise_rows(call, dim);
  const bool same_rank = ndim > 0 && call.tensor(1).dim() == ndim;
  if (same_rank) {
    rows.push_back({{R, R, S(dim)}, {S(dim)}});
  }
  for (const Placement& whole : whole_placements()) {
    if (whole.is_partial()) {
      rows.push_back({{R, R, whole}, {R}});
    }
    if (same_rank) {
      rows.push_back({{S(dim), S(dim), whole}, {P(ReduceOp::Sum)}});
    }
    for (const ReduceOp op : kLinearReductions) {
      rows.push_back({{P(op), R, whole}, {P(op)}});
    }
  }
  return rows;
}

// scatter(self, dim, index, src or value)
Rows scatter_rows(const OpCall& call) {
  return slicewise_rows(call, call.dimension("dim", call.tensor(0).dim()));
}

// scatter_add(self, dim, index, src): linear in `self` and `src` together, and
// what is added may come from several ranks.
Rows scatter_add_rows(const OpCall& call) {
  const int64_t dim = call.dimension("dim", call.tensor(0).dim());
  const CheckedSizes& index = call.tensor(1).sizes;
  Rows rows = scatter_rows(call);
  for (size_t d = 0; d < index.size(); ++d) {
    // Along other dimensions the position in `self` follows the index's own.
    const auto own = static_cast<int64_t>(d);
    const CheckedSizes& src = call.tensor(2).sizes;
    if (own == dim && d < src.size() && src[d] == index[d]) {
      rows.push_back({{P(ReduceOp::Sum), S(own), S(own)}, {P(ReduceOp::Sum)}});
    }
  }
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back({{P(op), R, P(op)}, {P(op)}});
  }
  return rows;
}

// index_add(self, dim, index, source): likewise, row by row along `dim`.
Rows index_add_rows(const OpCall& call) {
  const TensorArg& self = call.tensor(0);
  const TensorArg& source = call.tensor(2);
  const int64_t dim = call.dimension("dim", self.dim());
  Rows rows;
  for (int64_t d = 0; d < self.dim() && source.dim() == self.dim(); ++d) {
    if (d != dim) {
      rows.push_back({{S(d), R, S(d)}, {S(d)}});
    } else if (call.tensor(1).dim() == 1) {
      rows.push_back({{P(ReduceOp::Sum), S(0), S(d)}, {P(ReduceOp::Sum)}});
    }
  }
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back({{P(op), R, P(op)}, {P(op)}});
  }
  return rows;
}

// Whether the call is one that ATen refuses, in an internal assert, where what
// stands at one index is a single element. A rank may hold no more of it.
bool multiplies_halves(const OpCall& call) {
  return call.has("reduce") &&
         call.argument("reduce").toStringRef() == "prod" &&
         c10::isReducedFloatingType(call.tensor(0).dtype);
}

// index_copy(self, dim, index, source), index_reduce, index_fill(self, dim,
// index, value): row by row along `dim`. Of several values for one place any
// may win, so that pending terms do not pass.
Rows index_write_rows(const OpCall& call) {
  if (multiplies_halves(call)) {
    return {};
  }
  const TensorArg& self = call.tensor(0);
  const int64_t dim = call.dimension("dim", self.dim());
  const size_t operands = operand_count(call);
  Rows rows;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (d == dim) {
      continue;
    }
    Row row({S(d), R}, {S(d)});
    if (operands == 3) {
      row.inputs.push_back(call.tensor(2).dim() == self.dim() ? S(d) : R);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// scatter_reduce(self, dim, index, src, reduce): sums are linear.
Rows scatter_reduce_rows(const OpCall& call) {
  const bool sums = call.argument("reduce").toStringView() == "sum" &&
                    call.boolean("include_self");
  return sums ? scatter_add_rows(call) : scatter_rows(call);
}

// take(self, index): of the elements of `self` in a row.
Rows take_rows(const OpCall& call) {
  Rows rows;
  for (int64_t d = 0; d < call.tensor(1).dim(); ++d) {
    rows.push_back({{R, S(d)}, {S(d)}});
  }
  for (const ReduceOp op : kEveryReduction) {
    rows.push_back({{P(op), R}, {P(op)}});
  }
  return rows;
}

std::vector<Sizes> same_as_self(const OpCall& call) {
  return {call.tensor(0).sizes};
}

}  // namespace

void add_index_rules(RuleTable& table) {
  add_index_tensor_rules(table);
  // Ranks may hold different indices, of which each checks its own.
  const auto add = [&](std::initializer_list<std::string_view> names,
                       RowsFunction rows,
                       SizesFunction sizes = nullptr,
                       std::vector<LocalArgument> local = {}) {
    table.add(
        names,
        {.rows = std::move(rows),
         .output_sizes = std::move(sizes),
         .local_arguments = std::move(local),
         .checked_arguments = {"index"}});
  };
  add({"aten::index_copy",
       "aten::index_copy_",
       "aten::index_fill",
       "aten::index_fill_",
       "aten::index_reduce",
       "aten::index_reduce_"},
      index_write_rows,
      same_as_self);
  add({"aten::scatter_reduce", "aten::scatter_reduce_"}, scatter_reduce_rows);
  add({"aten::index_select"}, index_select_rows, index_select_sizes);
  add({"aten::index_add", "aten::index_add_"}, index_add_rows);
  add({"aten::scatter", "aten::scatter_"}, scatter_rows);
  add({"aten::scatter_add", "aten::scatter_add_"}, scatter_add_rows);
  add({"tessera::gather_part"}, gather_rows, nullptr, {first(0), size(0)});
  Rule take = rule_of(take_rows, [](const OpCall& call) {
    return std::vector<Sizes>{call.tensor(1).sizes};
  });
  take.checked_arguments = {"index"};
  table.add("aten::take", take);
  table.add(
      "tessera::gather_part_backward",
      {.rows = gather_backward_rows, .local_arguments = {first(2), size(2)}});
}

}  // namespace tessera::detail
