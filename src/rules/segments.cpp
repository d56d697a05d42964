// Reductions of segments of a dimension, and norms of slices.
#include <utility>

#include "rules/layer_families.h"
#include "rules/rows.h"

namespace tessera::detail {
namespace {

// Operands that say where segments are have the dimensions up to `axis`; the
// others have all.
Rows segment_rows(const OpCall& call, size_t values) {
  const int64_t ndim = call.tensor(values - 1).dim();
  const int64_t axis = call.dimension("axis", ndim);
  Rows rows;
  for (int64_t d = 0; d < ndim; ++d) {
    if (d == axis) {
      continue;
    }
    Row row = uniform_row(call, d < axis ? S(d) : R, S(d));
    for (size_t i = 0; i < values; ++i) {
      row.inputs[i] = S(d);
    }
    row.needs = Needs::NonEmpty;
    rows.push_back(std::move(row));
  }
  return rows;
}

// segment_reduce(data, reduce, lengths?, indices?, offsets?, axis, ...)
std::vector<Sizes> segment_sizes(const OpCall& call) {
  const TensorArg& data = call.tensor(0);
  const int64_t axis = call.dimension("axis", data.dim());
  const bool by_length = call.tensor(1).defined;
  CheckedSizes sizes = by_length ? call.tensor(1).sizes : call.tensor(3).sizes;
  if (!by_length) {
    --sizes.back();
  }
  sizes.append(data.sizes.without_first(axis + 1));
  return {sizes};
}

// renorm(self, p, dim, maxnorm): each slice of `dim` by its own norm.
Rows renorm_rows(const OpCall& call) {
  const int64_t dim = call.dimension("dim", call.tensor(0).dim());
  return {{{S(dim)}, {S(dim)}}};
}

}  // namespace

void add_segment_rules(RuleTable& table) {
  table.add(
      "aten::segment_reduce",
      rule_of(
          [](const OpCall& call) { return segment_rows(call, 1); },
          segment_sizes));
  table.add(
      "aten::_segment_reduce_backward",
      rule_of(
          [](const OpCall& call) { return segment_rows(call, 3); },
          [](const OpCall& call) {
            return std::vector<Sizes>{call.tensor(2).sizes};
          }));
  table.add({"aten::renorm", "aten::renorm_"}, rule_of(renorm_rows));
}

}  // namespace tessera::detail
