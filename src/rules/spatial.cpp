// Ops on the last dimensions of images and the like: pooling, upsampling and
// padding. The dimensions before, samples and channels, may be sharded.
#include <utility>

#include "rules/layer_families.h"
#include "rules/rows.h"

namespace tessera::detail {
namespace {

// All operands have the leading dimensions, and so have the results.
Rows leading_rows(const OpCall& call, int64_t spatial) {
  Rows rows;
  for (int64_t d = 0; d < call.tensor(0).dim() - spatial; ++d) {
    Row row = uniform_row(call, S(d), S(d));
    row.needs = Needs::NonEmpty;
    rows.push_back(std::move(row));
  }
  return rows;
}

Rule leading_rule(int64_t spatial) {
  return rule_of(
      [spatial](const OpCall& call) { return leading_rows(call, spatial); });
}

// The same for ops that are linear in their first operand and of the others
// read indices or sizes alone.
Rule spatial_linear_rule(int64_t spatial) {
  return rule_of([spatial](const OpCall& call) {
    Rows rows = leading_rows(call, spatial);
    for (const ReduceOp op : kLinearReductions) {
      Row row = uniform_row(call, R, P(op));
      row.inputs[0] = P(op);
      rows.push_back(std::move(row));
    }
    return rows;
  });
}

// (grad, self, ...): linear in the gradient; of `self` the size is read alone.
Rule pooling_backward_rule(int64_t spatial) {
  return rule_of([spatial](const OpCall& call) {
    Rows rows = leading_rows(call, spatial);
    const auto add = [&](const Placement& grad, const Placement& self) {
      Row row = uniform_row(call, R, grad);
      row.inputs[0] = grad;
      row.inputs[1] = self;
      rows.push_back(std::move(row));
    };
    for (const Placement& self : whole_placements()) {
      add(R, self);
      for (const ReduceOp op : kLinearReductions) {
        add(P(op), self);
      }
    }
    return rows;
  });
}

// upsample_*_backward(grad, output_size, input_size, ...)
Rule upsample_backward_rule(int64_t spatial) {
  Rule rule = spatial_linear_rule(spatial);
  rule.local_arguments = {local_sizes("input_size")};
  return rule;
}

Rule adaptive_average_rule(int64_t spatial) {
  Rule rule = spatial_linear_rule(spatial);
  rule.output_sizes = [spatial](const OpCall& call) -> std::vector<Sizes> {
    Sizes sizes = call.tensor(0).sizes;
    const Sizes wanted = call.integers("output_size");
    for (int64_t d = 0; d < spatial; ++d) {
      sizes[sizes.size() - spatial + d] = wanted[d];
    }
    return {sizes};
  };
  return rule;
}

Rule adaptive_average_backward_rule(int64_t spatial) {
  Rule rule = pooling_backward_rule(spatial);
  rule.output_sizes = [](const OpCall& call) -> std::vector<Sizes> {
    return {call.tensor(1).sizes};
  };
  return rule;
}

}  // namespace

void add_spatial_rules(RuleTable& table) {
  table.add("aten::max_pool2d_with_indices", leading_rule(2));
  table.add("aten::max_pool2d_with_indices_backward", pooling_backward_rule(2));
  table.add("aten::adaptive_max_pool2d", leading_rule(2));
  table.add("aten::adaptive_max_pool2d_backward", pooling_backward_rule(2));
  table.add("aten::adaptive_max_pool3d", leading_rule(3));
  table.add("aten::adaptive_max_pool3d_backward", pooling_backward_rule(3));
  table.add("aten::avg_pool2d", spatial_linear_rule(2));
  table.add("aten::avg_pool2d_backward", pooling_backward_rule(2));
  table.add("aten::avg_pool3d", spatial_linear_rule(3));
  table.add("aten::avg_pool3d_backward", pooling_backward_rule(3));
  table.add("aten::_adaptive_avg_pool2d", adaptive_average_rule(2));
  table.add(
      "aten::_adaptive_avg_pool2d_backward", adaptive_average_backward_rule(2));
  table.add("aten::_adaptive_avg_pool3d", adaptive_average_rule(3));
  table.add(
      "aten::_adaptive_avg_pool3d_backward", adaptive_average_backward_rule(3));

  const auto add_upsample = [&](const std::string& name, int64_t spatial) {
    table.add("aten::" + name, spatial_linear_rule(spatial));
    table.add("aten::" + name + "_backward", upsample_backward_rule(spatial));
  };
  add_upsample("upsample_linear1d", 1);
  add_upsample("upsample_nearest1d", 1);
  add_upsample("_upsample_nearest_exact1d", 1);
  add_upsample("upsample_bilinear2d", 2);
  add_upsample("upsample_bicubic2d", 2);
  add_upsample("upsample_nearest2d", 2);
  add_upsample("_upsample_nearest_exact2d", 2);
  add_upsample("_upsample_bilinear2d_aa", 2);
  add_upsample("_upsample_bicubic2d_aa", 2);
  add_upsample("upsample_trilinear3d", 3);
  add_upsample("upsample_nearest3d", 3);
  add_upsample("_upsample_nearest_exact3d", 3);

  table.add("aten::reflection_pad1d", spatial_linear_rule(1));
  table.add("aten::reflection_pad3d", spatial_linear_rule(3));
  table.add("aten::replication_pad1d", spatial_linear_rule(1));
  table.add("aten::replication_pad2d", spatial_linear_rule(2));
  table.add("aten::replication_pad3d", spatial_linear_rule(3));
}

}  // namespace tessera::detail
