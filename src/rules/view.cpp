// Views: ops that only give elements other indices, so that every pending
// reduction stays pending. Those that shorten a dimension are in slice.cpp.
#include "rules/view.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "rules/rows.h"
#include "rules/view_groups.h"

namespace tessera::detail {
namespace {

// Where in a view of sizes `to` a dimension of size 1 may be: one rank has all
// elements in any such dimension. Where it was, if that has size 1 too.
std::optional<int64_t> dimension_of_one(const Sizes& to, int64_t dim) {
  const auto count = static_cast<int64_t>(to.size());
  if (dim < count && to[dim] == 1) {
    return dim;
  }
  const int64_t first = std::find(to.begin(), to.end(), 1) - to.begin();
  return first < count ? std::optional(first) : std::nullopt;
}

// view, _unsafe_view: the first dimension of a group is the one that is
// sharded.
Rows reshape_rows(const OpCall& call) {
  const CheckedSizes& from = call.tensor(0).sizes;
  const int64_t numel = std::accumulate(
      from.begin(), from.end(), int64_t{1}, std::multiplies<>());
  const CheckedSizes to = inferred_sizes(call.integers("size"), numel);
  Rows rows;
  for (const ViewGroup& group : view_groups(from, to)) {
    rows.emplace_back(
        c10::SmallVector<Placement, 4>{S(group.in[0])},
        c10::SmallVector<Placement, 2>{S(group.out[0])},
        group.unchanged() ? Needs::Nothing : Needs::Even);
  }
  // Dimensions of size 1 belong to no group.
  const Rows of_ones =
      moved_rows(call, [&](int64_t d) -> std::optional<int64_t> {
        return from[d] == 1 ? dimension_of_one(to, d) : std::nullopt;
      });
  rows.insert(rows.end(), of_ones.begin(), of_ones.end());
  pass_reductions(rows, call, kEveryReduction);
  return rows;
}

// view.dtype: elements of another size change the last dimension.
Rows view_dtype_rows(const OpCall& call) {
  const TensorArg& self = call.tensor(0);
  const auto dtype = call.argument("dtype").toScalarType();
  const bool same_size =
      c10::elementSize(dtype) == c10::elementSize(self.dtype);
  return moved_rows(call, [&](int64_t d) -> std::optional<int64_t> {
    return same_size || d + 1 < self.dim() ? std::optional(d) : std::nullopt;
  });
}

Rows expand_rows(const OpCall& call) {
  const CheckedSizes& from = call.tensor(0).sizes;
  const CheckedSizes to = call.integers("size");
  const auto added = static_cast<int64_t>(to.size()) - call.tensor(0).dim();
  Rows rows = moved_rows(call, [&](int64_t d) -> std::optional<int64_t> {
    const int64_t at = d + added;
    const bool whole = at >= 0 && (to[at] == -1 || to[at] == from[d]);
    return whole ? std::optional(at) : std::nullopt;
  });
  pass_reductions(rows, call, kEveryReduction);
  return rows;
}

Rows t_rows(const OpCall& call) {
  const int64_t ndim = call.tensor(0).dim();
  Rows rows = moved_rows(
      call, [ndim](int64_t d) { return ndim < 2 ? d : ndim - 1 - d; });
  pass_reductions(rows, call, kEveryReduction);
  return rows;
}

Rows transpose_rows(const OpCall& call) {
  const int64_t ndim = call.tensor(0).dim();
  const int64_t a = call.dimension("dim0", ndim);
  const int64_t b = call.dimension("dim1", ndim);
  Rows rows = moved_rows(call, [a, b](int64_t d) {
    return d == a ? b : d == b ? a : d;
  });
  pass_reductions(rows, call, kEveryReduction);
  return rows;
}

Rows permute_rows(const OpCall& call) {
  const int64_t ndim = call.tensor(0).dim();
  const CheckedSizes order = call.dimensions("dims", ndim);
  Rows rows = moved_rows(call, [&](int64_t d) -> std::optional<int64_t> {
    for (size_t at = 0; at < order.size(); ++at) {
      if (order[at] == d) {
        return static_cast<int64_t>(at);
      }
    }
    return std::nullopt;
  });
  pass_reductions(rows, call, kEveryReduction);
  return rows;
}

Rows unsqueeze_rows(const OpCall& call) {
  const int64_t at = call.dimension("dim", call.tensor(0).dim() + 1);
  Rows rows = moved_rows(call, [at](int64_t d) { return d < at ? d : d + 1; });
  pass_reductions(rows, call, kEveryReduction);
  return rows;
}

// The dimensions that squeeze.dims takes away: those named that have size 1 in
// the whole tensor, whatever size they have here.
CheckedSizes squeezed_dims(const OpCall& call) {
  const TensorArg& self = call.tensor(0);
  CheckedSizes squeezed;
  if (call.integers("dim").empty()) {
    return squeezed;
  }
  for (const int64_t d : call.dimensions("dim", self.dim())) {
    if (self.sizes[d] == 1) {
      squeezed.push_back(d);
    }
  }
  return squeezed;
}

Rows squeeze_rows(const OpCall& call) {
  const auto gone = marked(squeezed_dims(call), call.tensor(0).dim());
  Rows rows = moved_rows(call, [&](int64_t d) -> std::optional<int64_t> {
    if (gone[d]) {
      return std::nullopt;
    }
    int64_t at = d;
    for (int64_t before = 0; before < d; ++before) {
      at -= gone[before] ? 1 : 0;
    }
    return at;
  });
  pass_reductions(rows, call, kEveryReduction);
  return rows;
}

c10::IValue local_squeezed_dims(const OpCall& call, const LocalView&) {
  const CheckedSizes dims = squeezed_dims(call);
  return std::vector<int64_t>(dims.begin(), dims.end());
}

// A complex number as two: the sum of complex numbers is taken part by part,
// their product is not.
Rows view_as_real_rows(const OpCall& call) {
  Rows rows = moved_rows(call, [](int64_t d) { return d; });
  pass_reductions(rows, call, kLinearReductions);
  return rows;
}

Rows view_as_complex_rows(const OpCall& call) {
  const int64_t last = call.tensor(0).dim() - 1;
  Rows rows = moved_rows(call, [last](int64_t d) -> std::optional<int64_t> {
    return d == last ? std::nullopt : std::optional(d);
  });
  pass_reductions(rows, call, kLinearReductions);
  return rows;
}

}  // namespace

Rows moved_rows(
    const OpCall& call,
    const std::function<std::optional<int64_t>(int64_t)>& moved) {
  Rows rows;
  for (int64_t d = 0; d < call.tensor(0).dim(); ++d) {
    if (const auto at = moved(d)) {
      rows.push_back(uniform_row(call, S(d), S(*at)));
    }
  }
  return rows;
}

void add_view_rules(RuleTable& table) {
  Rule view = rule_of(reshape_rows);
  view.local_arguments = {local_sizes("size")};
  table.add({"aten::view", "aten::_unsafe_view", "aten::view_copy"}, view);
  table.add(
      {"aten::view.dtype", "aten::view_copy.dtype"}, rule_of(view_dtype_rows));

  Rule expand = rule_of(expand_rows);
  expand.local_arguments = {local_sizes("size")};
  table.add({"aten::expand", "aten::expand_copy"}, expand);

  table.add({"aten::t", "aten::t_copy"}, rule_of(t_rows));
  table.add(
      {"aten::transpose.int", "aten::transpose_copy.int"},
      rule_of(transpose_rows));
  table.add({"aten::permute", "aten::permute_copy"}, rule_of(permute_rows));
  table.add(
      {"aten::unsqueeze", "aten::unsqueeze_copy"}, rule_of(unsqueeze_rows));

  Rule squeeze = rule_of(squeeze_rows);
  squeeze.local_arguments = {{"dim", local_squeezed_dims}};
  table.add({"aten::squeeze.dims", "aten::squeeze_copy.dims"}, squeeze);

  table.add(
      {"aten::view_as_real",
       "aten::view_as_real_copy",
       "aten::_conj",
       "aten::_conj_copy",
       "aten::_neg_view",
       "aten::_neg_view_copy"},
      rule_of(view_as_real_rows));
  table.add(
      {"aten::view_as_complex", "aten::view_as_complex_copy"},
      rule_of(view_as_complex_rows));

  add_slice_rules(table);
}

}  // namespace tessera::detail
