// Ops that read an image elsewhere than where they write: sampling by a grid,
// and moves between channels and pixels.
#include <utility>

#include "rules/layer_families.h"
#include "rules/rows.h"

namespace tessera::detail {
namespace {

// grid_sampler_*(input[n, c, ...], grid[n, ..., k]) -> output[n, c, ...]
Rows grid_rows(const OpCall& call) {
  Rows rows{
      {{S(0), S(0)}, {S(0)}, Needs::NonEmpty},
      {{S(1), R}, {S(1)}, Needs::NonEmpty}};
  for (int64_t d = 1; d < call.tensor(1).dim() - 1; ++d) {
    rows.push_back({{R, S(d)}, {S(d + 1)}, Needs::NonEmpty});
  }
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back({{P(op), R}, {P(op)}});
  }
  return rows;
}

std::vector<Sizes> grid_sizes(const OpCall& call) {
  const CheckedSizes& input = call.tensor(0).sizes;
  const CheckedSizes& grid = call.tensor(1).sizes;
  CheckedSizes sizes{input[0], input[1]};
  sizes.append(grid.slice(1, grid.length() - 2));
  return {sizes};
}

// grid_sampler_*_backward(grad, input, grid) -> grad_input, grad_grid
Rows grid_backward_rows(const OpCall& call) {
  const Placement sum = P(ReduceOp::Sum);
  Rows rows{
      {{S(0), S(0), S(0)}, {S(0), S(0)}, Needs::NonEmpty},
      {{S(1), S(1), R}, {S(1), sum}, Needs::NonEmpty}};
  for (int64_t d = 1; d < call.tensor(2).dim() - 1; ++d) {
    rows.push_back({{S(d + 1), R, S(d)}, {sum, S(d)}, Needs::NonEmpty});
  }
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back({{P(op), R, R}, {P(op), P(op)}});
  }
  return rows;
}

std::vector<Sizes> grid_backward_sizes(const OpCall& call) {
  return {call.tensor(1).sizes, call.tensor(2).sizes};
}

// affine_grid_generator(theta[n, k, k + 1], size) -> grid[n, ..., k]
Rows affine_rows(const OpCall& call) {
  Rows rows{{{S(0)}, {S(0)}, Needs::NonEmpty}};
  pass_reductions(rows, call, kLinearReductions);
  return rows;
}

// `size` is that of the image, [n, c, ...].
std::vector<Sizes> affine_sizes(const OpCall& call) {
  const CheckedSizes size = call.integers("size");
  CheckedSizes sizes{size[0]};
  sizes.append(size.without_first(2));
  sizes.push_back(size.length() - 2);
  return {sizes};
}

c10::IValue affine_local_size(const OpCall& call, const LocalView& view) {
  CheckedSizes size = call.integers("size");
  size[0] = view.output_shape(0)[0];
  return std::vector<int64_t>(size.begin(), size.end());
}

// Pixels become channels or channels pixels, a block at a time: a shard of
// whole blocks stays one. They only move, and so do pending reductions.
Rows block_rows(const OpCall& call) {
  Rows rows;
  const int64_t ndim = call.tensor(0).dim();
  for (int64_t d = 0; d < ndim; ++d) {
    const Needs needs = d < ndim - 3 ? Needs::NonEmpty : Needs::Even;
    rows.push_back({{S(d)}, {S(d)}, needs});
  }
  pass_reductions(rows, call, kEveryReduction);
  return rows;
}

Rows channel_shuffle_rows(const OpCall& call) {
  Rows rows;
  for (int64_t d = 0; d < call.tensor(0).dim(); ++d) {
    if (d != 1) {
      rows.push_back({{S(d)}, {S(d)}, Needs::NonEmpty});
    }
  }
  pass_reductions(rows, call, kEveryReduction);
  return rows;
}

}  // namespace

void add_sampling_rules(RuleTable& table) {
  table.add(
      {"aten::grid_sampler_2d", "aten::grid_sampler_3d"},
      rule_of(grid_rows, grid_sizes));
  table.add(
      {"aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward"},
      rule_of(grid_backward_rows, grid_backward_sizes));
  Rule affine = rule_of(affine_rows, affine_sizes);
  affine.local_arguments = {{"size", affine_local_size}};
  table.add("aten::affine_grid_generator", affine);
  table.add(
      {"aten::pixel_shuffle", "aten::pixel_unshuffle"}, rule_of(block_rows));
  table.add(
      "aten::channel_shuffle",
      rule_of(channel_shuffle_rows, [](const OpCall& call) {
        return std::vector<Sizes>{call.tensor(0).sizes};
      }));
}

}  // namespace tessera::detail
