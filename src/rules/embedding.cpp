// Lookups in a table: column-wise, row-wise, and by batches of indices.
#include "rules/rows.h"
#include "rules/rule_table.h"

namespace tessera::detail {
namespace {

// The rows of the whole table of which this rank holds some. Distributed tables
// are whole: the offset is the layout's, not the caller's.
LocalArgument first_row(size_t table) {
  return {"first_row", [table](const OpCall& call, const LocalView& view) {
            return local_range(
                       call.tensor(table).sizes[0],
                       0,
                       view.mesh,
                       view.inputs[table],
                       view.position)
                .begin;
          }};
}

LocalArgument table_rows(size_t table) {
  return {"table_rows", [table](const OpCall& call, const LocalView&) {
            return call.tensor(table).sizes[0];
          }};
}

void check_whole_table(const OpCall& call, size_t table) {
  TORCH_CHECK_VALUE(
      call.tensor(table).dim() == 2,
      "[embedding] expected a table of two dimensions, but got one of shape ",
      SizesRef(call.tensor(table).sizes));
  TORCH_CHECK_VALUE(
      call.integer("first_row") == 0 && call.is_none("table_rows"),
      "[",
      op_display_name(call.schema()),
      "] first_row and table_rows are for plain tensors that hold a part of a "
      "table; a distributed table knows its own");
}

// lookup(weight[v, d], indices[...]) -> out[..., d]
Rows lookup_rows_of(const OpCall& call) {
  check_whole_table(call, 0);
  const int64_t n = call.tensor(1).dim();
  Rows rows{{{S(1), R}, {S(n)}}};  // column-wise
  if (adds_up(call.tensor(0).dtype)) {
    rows.push_back(
        {{S(0), R}, {MaskPartial(call.tensor(0).sizes, 0)}});  // row-wise
  }
  for (int64_t d = 0; d < n; ++d) {
    rows.push_back({{R, S(d)}, {S(d)}});  // batch
  }
  for (const ReduceOp op : kEveryReduction) {
    rows.push_back({{P(op), R}, {P(op)}});  // rows are copied as they are
  }
  return rows;
}

// lookup_backward(grad[..., d], indices[...], weight[v, d]) -> [v, d]
// Of the table only the layout is read.
Rows lookup_backward_rows(const OpCall& call) {
  check_whole_table(call, 2);
  const int64_t n = call.tensor(1).dim();
  Rows rows{
      {{S(n), R, S(1)}, {S(1)}},  // column-wise
      {{R, R, S(0)}, {S(0)}}};    // row-wise: each rank adds up its own rows
  if (call.boolean("sparse")) {
    return rows;  // a sparse gradient cannot be reduced
  }
  for (const Placement& whole : whole_placements()) {
    if (whole.is_partial()) {
      rows.push_back({{R, R, whole}, {R}});
    }
    // Frequencies are those of all indices, so that a part of them won't do.
    for (int64_t d = 0; d < n && !call.boolean("scale_grad_by_freq"); ++d) {
      rows.push_back({{S(d), S(d), whole}, {P(ReduceOp::Sum)}});  // batch
    }
    for (const ReduceOp op : kLinearReductions) {
      rows.push_back({{P(op), R, whole}, {P(op)}});
    }
  }
  return rows;
}

// embedding_dense_backward(grad[..., d], indices[...], num_weights) -> [v, d]
Rows embedding_backward_rows(const OpCall& call) {
  const int64_t n = call.tensor(1).dim();
  Rows rows{{{S(n), R}, {S(1)}}};  // column-wise
  // Frequencies are those of all indices, so that a part of them won't do.
  for (int64_t d = 0; d < n && !call.boolean("scale_grad_by_freq"); ++d) {
    rows.push_back({{S(d), S(d)}, {P(ReduceOp::Sum)}});  // batch
  }
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back({{P(op), R}, {P(op)}});
  }
  return rows;
}

std::vector<Sizes> embedding_backward_sizes(const OpCall& call) {
  return {
      CheckedSizes{call.integer("num_weights"), call.tensor(0).sizes.back()}};
}

}  // namespace

void add_embedding_rules(RuleTable& table) {
  table.add(
      "tessera::lookup",
      {.rows = lookup_rows_of,
       .local_arguments = {first_row(0), table_rows(0)},
       .checked_arguments = {"indices"}});
  table.add(
      "tessera::lookup_backward",
      {.rows = lookup_backward_rows,
       .local_arguments = {first_row(2), table_rows(2)},
       .own_dtype_arguments = {"weight"}});
  table.add(
      "aten::embedding_dense_backward",
      rule_of(embedding_backward_rows, embedding_backward_sizes));
}

}  // namespace tessera::detail
