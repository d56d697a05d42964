// Pooled lookups: bags of rows of a table, by columns, by rows and by batches
// of whole bags.
#include "rules/rows.h"
#include "rules/rule_table.h"

namespace tessera::detail {
namespace {

constexpr int64_t kMax = 2;  // ATen's number for the mode

// Where the tensors of these ops stand.
struct Places {
  size_t indices;
  size_t offsets;
  size_t table;
};
constexpr Places kForward{1, 2, 0};
constexpr Places kBackward{1, 2, 3};

int64_t bags_of(const OpCall& call, const Places& at) {
  const int64_t offsets = call.tensor(at.offsets).sizes[0];
  return offsets - (call.boolean("include_last_offset") ? 1 : 0);
}

// How the arguments that say which part a rank has follow from the layout.
std::vector<LocalArgument> part_arguments(const Places& at) {
  const auto rows = [at](const OpCall& call, const LocalView& view) {
    return local_range(
        call.tensor(at.table).sizes[0],
        0,
        view.mesh,
        view.inputs[at.table],
        view.position);
  };
  // Bags are sharded as their indices are: the caller has seen to it that
  // they begin where the chunks of indices do.
  const auto bags = [at](const OpCall& call, const LocalView& view) {
    return local_range(
        bags_of(call, at),
        0,
        view.mesh,
        view.inputs[at.indices],
        view.position);
  };
  return {
      {"first_row",
       [rows](const OpCall& call, const LocalView& view) {
         return rows(call, view).begin;
       }},
      {"table_rows",
       [at](const OpCall& call, const LocalView&) {
         return call.tensor(at.table).sizes[0];
       }},
      {"first_bag",
       [bags](const OpCall& call, const LocalView& view) {
         return bags(call, view).begin;
       }},
      {"bag_count",
       [bags](const OpCall& call, const LocalView& view) {
         return bags(call, view).size;
       }},
      {"first_index", [at](const OpCall& call, const LocalView& view) {
         return local_range(
                    call.tensor(at.indices).sizes[0],
                    0,
                    view.mesh,
                    view.inputs[at.indices],
                    view.position)
             .begin;
       }}};
}

// bag(weight[v, d], indices[n], offsets[b], per_sample_weights[n]?)
//   -> out[b, d], argmax[b, d] or [0]
Rows bag_rows(const OpCall& call) {
  const bool max = call.integer("mode") == kMax;
  const Placement argmax = max ? S(1) : R;
  Rows rows{{{S(1), R, R, R}, {S(1), argmax}}};  // column-wise
  if (call.boolean("whole_bags")) {
    rows.push_back({{R, S(0), R, S(0)}, {S(0), max ? S(0) : R}});
  }
  if (max) {
    return rows;
  }
  rows.push_back({{S(0), R, R, R}, {P(ReduceOp::Sum), R}});  // row-wise
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back({{P(op), R, R, R}, {P(op), R}});
    if (call.tensor(3).defined) {
      rows.push_back({{R, R, R, P(op)}, {P(op), R}});
    }
  }
  return rows;
}

// bag_backward(grad[b, d], indices, offsets, weight, per_sample_weights?,
//   argmax) -> [v, d]. Of the table only the layout is read.
Rows bag_backward_rows(const OpCall& call) {
  const bool max = call.integer("mode") == kMax;
  Rows rows{
      {{S(1), R, R, S(1), R, max ? S(1) : R}, {S(1)}},
      {{R, R, R, S(0), R, R}, {S(0)}}};
  if (call.boolean("sparse")) {
    return rows;  // a sparse gradient cannot be reduced
  }
  for (const Placement& whole : whole_placements()) {
    if (whole.is_partial()) {
      rows.push_back({{R, R, R, whole, R, R}, {R}});
    }
    if (call.boolean("whole_bags")) {
      rows.push_back(
          {{S(0), S(0), R, whole, S(0), max ? S(0) : R}, {P(ReduceOp::Sum)}});
    }
    for (const ReduceOp op : kLinearReductions) {
      rows.push_back({{P(op), R, R, whole, R, R}, {P(op)}});
      if (call.tensor(4).defined) {
        rows.push_back({{R, R, R, whole, P(op), R}, {P(op)}});
      }
    }
  }
  return rows;
}

// bag_weights_backward(grad[b, d], indices, offsets, weight[v, d]) -> [n]
Rows bag_weights_backward_rows(const OpCall& call) {
  Rows rows{
      {{S(1), R, R, S(1)}, {P(ReduceOp::Sum)}},
      {{R, R, R, S(0)}, {P(ReduceOp::Sum)}}};
  if (call.boolean("whole_bags")) {
    rows.push_back({{S(0), S(0), R, R}, {S(0)}});
  }
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back({{P(op), R, R, R}, {P(op)}});
    rows.push_back({{R, R, R, P(op)}, {P(op)}});
  }
  return rows;
}

}  // namespace

void add_bag_rules(RuleTable& table) {
  table.add(
      "tessera::bag",
      {.rows = bag_rows,
       .local_arguments = part_arguments(kForward),
       .checked_arguments = {"indices"}});
  table.add(
      "tessera::bag_backward",
      {.rows = bag_backward_rows,
       .local_arguments = part_arguments(kBackward),
       .own_dtype_arguments = {"weight"}});
  table.add(
      "tessera::bag_weights_backward",
      {.rows = bag_weights_backward_rows,
       .local_arguments = part_arguments(kBackward),
       .own_dtype_arguments = {"weight"}});
}

}  // namespace tessera::detail
