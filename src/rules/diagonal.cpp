// Ops that spread a dimension over two, or turn a plane: the other dimensions
// may be sharded, and what is pending stays pending.
#include <cstdlib>
#include <utility>

#include "rules/layer_families.h"
#include "rules/rows.h"

namespace tessera::detail {
namespace {

struct Plane {
  int64_t first;
  int64_t second;

  bool has(int64_t dim) const { return dim == first || dim == second; }
  // Where the `index`th of the dimensions outside the plane stands.
  int64_t outside(int64_t index) const {
    int64_t dim = 0;
    for (;; ++dim) {
      if (!has(dim) && index-- == 0) {
        return dim;
      }
    }
  }
};

Plane plane_of(const OpCall& call, int64_t ndim) {
  return {call.dimension("dim1", ndim), call.dimension("dim2", ndim)};
}

// diag_embed(self, offset, dim1, dim2): the last dimension becomes a diagonal.
Rows diag_embed_rows(const OpCall& call) {
  const int64_t ndim = call.tensor(0).dim();
  const Plane plane = plane_of(call, ndim + 1);
  Rows rows;
  for (int64_t d = 0; d < ndim - 1; ++d) {
    rows.push_back({{S(d)}, {S(plane.outside(d))}});
  }
  pass_reductions(rows, call, kEveryReduction);
  return rows;
}

// diagonal_scatter(self, src, offset, dim1, dim2)
Rows diagonal_scatter_rows(const OpCall& call) {
  const int64_t ndim = call.tensor(0).dim();
  const Plane plane = plane_of(call, ndim);
  Rows rows;
  for (int64_t d = 0; d < ndim - 2; ++d) {
    const Placement whole = S(plane.outside(d));
    rows.push_back({{whole, S(d)}, {whole}});
  }
  pass_reductions(rows, call, kEveryReduction);
  return rows;
}

// rot90(self, k, dims)
Rows rotate_rows(const OpCall& call) {
  Rows rows = rows_outside(
      call, call.dimensions("dims", call.tensor(0).dim()), [](int64_t d) {
        return Row{{S(d)}, {S(d)}};
      });
  pass_reductions(rows, call, kEveryReduction);
  return rows;
}

std::vector<Sizes> rotate_sizes(const OpCall& call) {
  CheckedSizes sizes = call.tensor(0).sizes;
  const CheckedSizes dims = call.dimensions("dims", call.tensor(0).dim());
  if (call.integer("k") % 2 != 0) {
    std::swap(sizes[dims[0]], sizes[dims[1]]);
  }
  return {sizes};
}

}  // namespace

void add_diagonal_rules(RuleTable& table) {
  table.add(
      "aten::diag_embed", rule_of(diag_embed_rows, [](const OpCall& call) {
        const TensorArg& self = call.tensor(0);
        const Plane plane = plane_of(call, self.dim() + 1);
        const int64_t side =
            self.sizes.back() + std::abs(call.integer("offset"));
        CheckedSizes sizes(self.dim() + 1, side);
        for (int64_t d = 0; d < self.dim() - 1; ++d) {
          sizes[plane.outside(d)] = self.sizes[d];
        }
        return std::vector<Sizes>{sizes};
      }));
  table.add(
      "aten::diagonal_scatter",
      rule_of(diagonal_scatter_rows, [](const OpCall& call) {
        return std::vector<Sizes>{call.tensor(0).sizes};
      }));
  table.add("aten::rot90", rule_of(rotate_rows, rotate_sizes));
}

}  // namespace tessera::detail
