// Ops on the last dimensions of images and the like: pooling, upsampling and
// padding. The dimensions before, samples and channels, may be sharded.
#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include "rules/layer_families.h"
#include "rules/rows.h"
#include "rules/windows.h"

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
// read only indices or sizes.
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

// (grad, self, ...): linear in the gradient; of `self` only the size is read.
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

// The sizes of what upsample_nearest* makes of an empty batch, of which the
// meta kernel in torch's Python package does not make sense; it knows all
// others.
std::vector<Sizes> nearest_sizes(const OpCall& call, int64_t spatial) {
  const Sizes& self = call.tensor(0).sizes;
  const auto numel = [](SizesRef sizes) {
    return std::accumulate(
        sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  };
  if (numel(self) != 0) {
    return {};
  }
  const Sizes wanted = call.integers("output_size");
  TORCH_CHECK(
      call.tensor(0).dim() == spatial + 2 &&
          numel(SizesRef(self).slice(1)) != 0,
      "Non-empty ",
      spatial + 2,
      "D data tensor expected but got a tensor with sizes ",
      SizesRef(self));
  TORCH_CHECK(
      static_cast<int64_t>(wanted.size()) == spatial,
      "It is expected output_size equals to ",
      spatial,
      ", but got size ",
      wanted.size());
  Sizes sizes{self[0], self[1]};
  sizes.append(wanted.begin(), wanted.end());
  return {sizes};
}

// Ops with an argument `output_size`.
Rule sized_rule(int64_t spatial) {
  Rule rule = spatial_linear_rule(spatial);
  rule.output_sizes = [spatial](const OpCall& call) -> std::vector<Sizes> {
    CheckedSizes sizes = call.tensor(0).sizes;
    const CheckedSizes wanted = call.integers("output_size");
    for (int64_t d = 0; d < spatial; ++d) {
      sizes.from_end(spatial - d) = wanted[d];
    }
    return {sizes};
  };
  return rule;
}

// The same where ATen has no meta kernel: the result has the size of `self`.
Rule sized_backward_rule(int64_t spatial) {
  Rule rule = pooling_backward_rule(spatial);
  rule.output_sizes = [](const OpCall& call) -> std::vector<Sizes> {
    return {call.tensor(1).sizes};
  };
  return rule;
}

// max_pool3d_with_indices(self, kernel, stride, padding, dilation, ceil_mode)
std::vector<Sizes> max_pool3d_sizes(const OpCall& call) {
  CheckedSizes sizes = call.tensor(0).sizes;
  const CheckedSizes kernel = call.integers("kernel_size");
  const CheckedSizes stride = call.integers("stride");
  const CheckedSizes padding = call.integers("padding");
  const CheckedSizes dilation = call.integers("dilation");
  const bool ceil = call.boolean("ceil_mode");
  for (int64_t d = 0; d < 3; ++d) {
    int64_t& size = sizes.from_end(3 - d);
    size = window_count(
        call,
        size,
        {along(kernel, d),
         along(stride.empty() ? kernel : stride, d),
         along(padding, d),
         along(dilation, d)},
        ceil);
  }
  return {sizes, sizes};
}

// max_unpool*(self, indices, output_size, ...)
Rule max_unpool_rule(int64_t spatial) {
  Rule rule = sized_rule(spatial);
  rule.checked_arguments = {"indices"};
  return rule;
}

// fractional_max_pool*(self, kernel, output_size, random_samples[n, c, k])
Rule fractional_rule(int64_t spatial) {
  return rule_of([spatial](const OpCall& call) {
    const int64_t leading = call.tensor(0).dim() - spatial;
    Rows rows;
    for (int64_t d = 0; d < leading; ++d) {
      // One sample has no dimension for it, its random samples have.
      rows.push_back(
          {{S(d), S(leading == 1 ? 1 : d)}, {S(d), S(d)}, Needs::NonEmpty});
    }
    return rows;
  });
}

// im2col(self[..., c, h, w]) and col2im(self[..., c * k, l]): channels that are
// whole stay whole.
Rule column_rule(int64_t spatial) {
  return rule_of([spatial](const OpCall& call) {
    const int64_t channels = call.tensor(0).dim() - spatial - 1;
    Rows rows;
    for (int64_t d = 0; d <= channels; ++d) {
      const Needs needs = d == channels ? Needs::Even : Needs::NonEmpty;
      rows.push_back({{S(d)}, {S(d)}, needs});
    }
    pass_reductions(rows, call, kLinearReductions);
    return rows;
  });
}

std::vector<Sizes> im2col_sizes(const OpCall& call) {
  const CheckedSizes& self = call.tensor(0).sizes;
  const CheckedSizes kernel = call.integers("kernel_size");
  const CheckedSizes dilation = call.integers("dilation");
  const CheckedSizes padding = call.integers("padding");
  const CheckedSizes stride = call.integers("stride");
  int64_t columns = 1;
  for (int64_t d = 0; d < 2; ++d) {
    columns *= window_count(
        call,
        self.from_end(2 - d),
        {along(kernel, d),
         along(stride, d),
         along(padding, d),
         along(dilation, d)});
  }
  CheckedSizes sizes = self.without_last(2);
  sizes.back() *= along(kernel, 0) * along(kernel, 1);
  sizes.push_back(columns);
  return {sizes};
}

std::vector<Sizes> col2im_sizes(const OpCall& call) {
  const CheckedSizes& self = call.tensor(0).sizes;
  const CheckedSizes kernel = call.integers("kernel_size");
  CheckedSizes sizes = self.without_last(1);
  const int64_t elements = along(kernel, 0) * along(kernel, 1);
  TORCH_CHECK(
      elements > 0,
      "[aten.col2im.default] expected kernel sizes greater than zero, but got ",
      SizesRef(kernel));
  sizes.back() /= elements;
  for (const int64_t size : call.integers("output_size")) {
    sizes.push_back(size);
  }
  return {sizes};
}

void add_padding_rules(RuleTable& table) {
  // ATen has no meta kernel for this one.
  Rule reflection = spatial_linear_rule(2);
  reflection.output_sizes = [](const OpCall& call) -> std::vector<Sizes> {
    CheckedSizes sizes = call.tensor(0).sizes;
    const CheckedSizes padding = call.integers("padding");
    sizes.from_end(1) += padding[0] + padding[1];
    sizes.from_end(2) += padding[2] + padding[3];
    return {sizes};
  };
  for (const std::string kind : {"reflection", "replication"}) {
    for (int64_t spatial = 1; spatial <= 3; ++spatial) {
      const auto name =
          "aten::" + kind + "_pad" + std::to_string(spatial) + "d";
      const bool sized = kind == "reflection" && spatial == 2;
      table.add(name, sized ? reflection : spatial_linear_rule(spatial));
      table.add(name + "_backward", sized_backward_rule(spatial));
    }
  }
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
  table.add("aten::_adaptive_avg_pool2d", sized_rule(2));
  table.add("aten::_adaptive_avg_pool2d_backward", sized_backward_rule(2));
  table.add("aten::_adaptive_avg_pool3d", sized_rule(3));
  table.add("aten::_adaptive_avg_pool3d_backward", sized_backward_rule(3));

  const auto add_upsample = [&](const std::string& name, int64_t spatial) {
    Rule rule = spatial_linear_rule(spatial);
    if (name.find("nearest") != std::string::npos) {
      rule.output_sizes = [spatial](const OpCall& call) {
        return nearest_sizes(call, spatial);
      };
    }
    table.add("aten::" + name, rule);
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

  add_padding_rules(table);
  Rule max_pool3d = leading_rule(3);
  max_pool3d.output_sizes = max_pool3d_sizes;
  table.add("aten::max_pool3d_with_indices", max_pool3d);
  table.add("aten::max_pool3d_with_indices_backward", sized_backward_rule(3));
  table.add("aten::max_unpool2d", max_unpool_rule(2));
  table.add("aten::max_unpool3d", max_unpool_rule(3));
  table.add("aten::fractional_max_pool2d", fractional_rule(2));
  table.add("aten::fractional_max_pool2d_backward", pooling_backward_rule(2));
  table.add("aten::fractional_max_pool3d", fractional_rule(3));
  table.add("aten::fractional_max_pool3d_backward", sized_backward_rule(3));
  Rule im2col = column_rule(2);
  im2col.output_sizes = im2col_sizes;
  table.add("aten::im2col", im2col);
  Rule col2im = column_rule(1);
  col2im.output_sizes = col2im_sizes;
  table.add("aten::col2im", col2im);
}

}  // namespace tessera::detail
