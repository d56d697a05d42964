// Views that shorten or drop a dimension, and their gradients: the other
// dimensions may be sharded.
#include <algorithm>
#include <utility>

#include "rules/rows.h"
#include "rules/view.h"

namespace tessera::detail {
namespace {

using Moved = std::function<std::optional<int64_t>(int64_t)>;

Rows view_rows(const OpCall& call, const Moved& moved) {
  Rows rows = moved_rows(call, moved);
  pass_reductions(rows, call, kEveryReduction);
  return rows;
}

Moved all_but(int64_t dim) {
  return [dim](int64_t d) -> std::optional<int64_t> {
    return d == dim ? std::nullopt : std::optional(d);
  };
}

Moved without(int64_t dim) {
  return [dim](int64_t d) -> std::optional<int64_t> {
    return d == dim ? std::nullopt : std::optional(d < dim ? d : d - 1);
  };
}

// The two dimensions go, the diagonal comes last.
Moved without_both(int64_t a, int64_t b) {
  return [a, b](int64_t d) -> std::optional<int64_t> {
    if (d == a || d == b) {
      return std::nullopt;
    }
    return d - (d > a ? 1 : 0) - (d > b ? 1 : 0);
  };
}

int64_t optional_integer(
    const OpCall& call, const char* name, int64_t otherwise) {
  return call.is_none(name) ? otherwise : call.integer(name);
}

// Whether slice(dim, start, end, step) of a dimension of `size` takes it whole.
bool takes_all(const OpCall& call, int64_t size) {
  const int64_t start = optional_integer(call, "start", 0);
  const int64_t end = optional_integer(call, "end", size);
  return (start == 0 || start <= -size) && end >= size &&
         call.integer("step") == 1;
}

Moved sliced(const OpCall& call, SizesRef sizes) {
  const auto ndim = static_cast<int64_t>(sizes.size());
  const int64_t dim = call.dimension("dim", ndim);
  return takes_all(call, sizes[dim]) ? Moved([](int64_t d) { return d; })
                                     : all_but(dim);
}

Rows slice_rows(const OpCall& call) {
  return view_rows(call, sliced(call, call.tensor(0).sizes));
}

Rows select_rows(const OpCall& call) {
  return view_rows(call, without(call.dimension("dim", call.tensor(0).dim())));
}

Rows split_rows(const OpCall& call) {
  return view_rows(call, all_but(call.dimension("dim", call.tensor(0).dim())));
}

Rows unfold_rows(const OpCall& call) {
  return view_rows(
      call, all_but(call.dimension("dimension", call.tensor(0).dim())));
}

Rows diagonal_rows(const OpCall& call) {
  const int64_t ndim = call.tensor(0).dim();
  return view_rows(
      call,
      without_both(call.dimension("dim1", ndim), call.dimension("dim2", ndim)));
}

// The gradient of a view puts the elements back among zeros: the rows of the
// view, read backwards. Zeros leave sums pending.
Rows backward_rows(const OpCall& call, const Moved& moved) {
  Rows rows;
  const auto ndim = static_cast<int64_t>(call.integers("input_sizes").size());
  for (int64_t d = 0; d < ndim; ++d) {
    if (const auto at = moved(d)) {
      rows.push_back(uniform_row(call, S(*at), S(d)));
    }
  }
  pass_reductions(rows, call, kLinearReductions);
  return rows;
}

Rows slice_backward_rows(const OpCall& call) {
  return backward_rows(call, sliced(call, call.integers("input_sizes")));
}

Rows select_backward_rows(const OpCall& call) {
  const auto ndim = static_cast<int64_t>(call.integers("input_sizes").size());
  return backward_rows(call, without(call.dimension("dim", ndim)));
}

Rows unfold_backward_rows(const OpCall& call) {
  const auto ndim = static_cast<int64_t>(call.integers("input_sizes").size());
  return backward_rows(call, all_but(call.dimension("dim", ndim)));
}

Rows diagonal_backward_rows(const OpCall& call) {
  const auto ndim = static_cast<int64_t>(call.integers("input_sizes").size());
  return backward_rows(
      call,
      without_both(call.dimension("dim1", ndim), call.dimension("dim2", ndim)));
}

Rule backward_rule(RowsFunction rows) {
  Rule rule = rule_of(std::move(rows), [](const OpCall& call) {
    return std::vector<Sizes>{call.integers("input_sizes")};
  });
  rule.local_arguments = {local_sizes("input_sizes")};
  return rule;
}

// slice_scatter(self, src, ...): `src` lies in `self` as the view would.
Rows scatter_rows(const OpCall& call, const Moved& moved) {
  Rows rows;
  for (int64_t d = 0; d < call.tensor(0).dim(); ++d) {
    if (const auto at = moved(d)) {
      rows.push_back({{S(d), S(*at)}, {S(d)}});
    }
  }
  if (call.tensor(0).dtype == call.tensor(1).dtype) {
    pass_reductions(rows, call, kEveryReduction);
  }
  return rows;
}

Rows slice_scatter_rows(const OpCall& call) {
  return scatter_rows(
      call, all_but(call.dimension("dim", call.tensor(0).dim())));
}

Rows select_scatter_rows(const OpCall& call) {
  return scatter_rows(
      call, without(call.dimension("dim", call.tensor(0).dim())));
}

}  // namespace

void add_slice_rules(RuleTable& table) {
  table.add(
      {"aten::slice.Tensor", "aten::slice_copy.Tensor"}, rule_of(slice_rows));
  table.add(
      {"aten::select.int", "aten::select_copy.int"}, rule_of(select_rows));
  table.add(
      {"aten::split.Tensor",
       "aten::split_copy.Tensor",
       "aten::split_with_sizes",
       "aten::split_with_sizes_copy",
       "aten::unsafe_split.Tensor",
       "aten::unsafe_split_with_sizes"},
      rule_of(split_rows));
  table.add(
      {"aten::unbind.int", "aten::unbind_copy.int"}, rule_of(select_rows));
  table.add({"aten::unfold", "aten::unfold_copy"}, rule_of(unfold_rows));
  table.add({"aten::diagonal", "aten::diagonal_copy"}, rule_of(diagonal_rows));

  table.add("aten::slice_backward", backward_rule(slice_backward_rows));
  table.add("aten::select_backward", backward_rule(select_backward_rows));
  table.add("aten::unfold_backward", backward_rule(unfold_backward_rows));
  table.add("aten::diagonal_backward", backward_rule(diagonal_backward_rows));

  table.add("aten::slice_scatter", rule_of(slice_scatter_rows));
  table.add("aten::select_scatter", rule_of(select_scatter_rows));
}

}  // namespace tessera::detail
