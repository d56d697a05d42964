// Convolutions of every dimension, transposed ones too.
#include <utility>

#include "rules/layer_families.h"
#include "rules/rows.h"
#include "rules/windows.h"

namespace tessera::detail {
namespace {

// input[n, c, ...], weight[o, c / g, ...] (transposed: [c, o / g, ...]),
// bias[o] -> output[n, o, ...]
struct Convolution {
  explicit Convolution(const OpCall& call, size_t input)
      : input(call.tensor(input)),
        weight(call.tensor(input + 1)),
        transposed(call.boolean("transposed")),
        groups(call.integer("groups")) {}

  const TensorArg& input;
  const TensorArg& weight;
  bool transposed;
  int64_t groups;

  // Where the weight has the channels of the output and of the input.
  Placement weight_out() const { return S(transposed ? 1 : 0); }
  Placement weight_in() const { return S(transposed ? 0 : 1); }
};

Rows convolution_rows(const OpCall& call) {
  const Convolution conv(call, 0);
  const Placement sum = P(ReduceOp::Sum);
  Rows rows{{{S(0), R, R}, {S(0)}}};
  if (conv.groups == 1) {
    rows.push_back({{R, conv.weight_out(), S(0)}, {S(1)}, Needs::NonEmpty});
    // Each rank adds its part of the bias.
    rows.push_back({{S(1), conv.weight_in(), sum}, {sum}, Needs::NonEmpty});
  } else {
    // Whole groups, of input and of output channels.
    rows.push_back({{S(1), S(0), S(0)}, {S(1)}, Needs::Even, conv.groups});
  }
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back({{P(op), R, P(op)}, {P(op)}});
    rows.push_back({{R, P(op), P(op)}, {P(op)}});
  }
  return rows;
}

// Whether the kernel is longer, in some dimension, than what it slides over.
// oneDNN's gradient of such a kernel writes past its memory on machines with
// AVX-512 if there is one group, but not if there are several: ranks that are
// given a group each would crash where one device does not.
bool kernel_is_longer(const OpCall& call, const Convolution& conv) {
  const CheckedSizes& over =
      conv.transposed ? call.tensor(0).sizes : conv.input.sizes;
  const CheckedSizes& weight = conv.weight.sizes;
  const CheckedSizes dilation = call.integers("dilation");
  for (int64_t d = 2; d < weight.length() && d < over.length(); ++d) {
    if (along(dilation, d - 2) * (weight[d] - 1) + 1 > over[d]) {
      return true;
    }
  }
  return false;
}

// convolution_backward(grad, input, weight, bias_sizes?, ..., output_mask)
//   -> grad_input, grad_weight, grad_bias
Rows convolution_backward_rows(const OpCall& call) {
  const Convolution conv(call, 1);
  const Placement sum = P(ReduceOp::Sum);
  Rows rows{{{S(0), S(0), R}, {S(0), sum, sum}}};
  if (conv.groups == 1) {
    const auto out = conv.weight_out();
    const auto in = conv.weight_in();
    rows.push_back({{S(1), R, out}, {sum, out, S(0)}, Needs::NonEmpty});
    rows.push_back({{R, S(1), in}, {S(1), in, R}, Needs::NonEmpty});
  } else if (!kernel_is_longer(call, conv)) {
    rows.push_back(
        {{S(1), S(1), S(0)}, {S(1), S(0), S(0)}, Needs::Even, conv.groups});
  }
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back({{P(op), R, R}, {P(op), P(op), P(op)}});
    rows.push_back({{R, P(op), R}, {R, P(op), R}});
    rows.push_back({{R, R, P(op)}, {P(op), R, R}});
  }
  return rows;
}

// The size over which `count` windows slide.
int64_t unfolded_size(const OpCall& call, int64_t count, const Window& window) {
  check_window(call, window);
  return (count - 1) * window.stride - 2 * window.padding +
         window.dilation * (window.kernel - 1) + 1;
}

std::vector<Sizes> convolution_sizes(const OpCall& call) {
  const Convolution conv(call, 0);
  const CheckedSizes& input = conv.input.sizes;
  const CheckedSizes& weight = conv.weight.sizes;
  TORCH_CHECK(
      input.size() == weight.size() && input.size() > 2,
      "[aten.convolution.default] expected an input and a weight of as many "
      "dimensions, but got shapes ",
      SizesRef(input),
      " and ",
      SizesRef(weight));
  // Ranks without elements could not tell, nor those with some of the groups.
  TORCH_CHECK(
      conv.input.dtype == conv.weight.dtype,
      "Input type (",
      conv.input.dtype,
      ") and weight type (",
      conv.weight.dtype,
      ") should be the same");
  TORCH_CHECK(
      conv.groups > 0 && weight[0] >= conv.groups &&
          weight[0] % conv.groups == 0,
      "Given groups=",
      conv.groups,
      ", expected weight to be at least ",
      conv.groups,
      " at dimension 0 and divisible by it, but got weight of size ",
      SizesRef(weight),
      " instead");
  const int64_t channels =
      conv.transposed ? weight[0] : weight[1] * conv.groups;
  TORCH_CHECK(
      input[1] == channels,
      "Given groups=",
      conv.groups,
      ", weight of size ",
      SizesRef(weight),
      ", expected input",
      SizesRef(input),
      " to have ",
      channels,
      " channels, but got ",
      input[1],
      " channels instead");
  const CheckedSizes stride = call.integers("stride");
  const CheckedSizes padding = call.integers("padding");
  const CheckedSizes dilation = call.integers("dilation");
  const CheckedSizes extra = call.integers("output_padding");
  // Where the input has no channels, ATen's output has none.
  const int64_t outputs = conv.transposed ? weight[1] * conv.groups
                          : input[1] == 0 ? 0
                                          : weight[0];
  CheckedSizes output{input[0], outputs};
  for (int64_t d = 0; d + 2 < input.length(); ++d) {
    const Window window{
        weight[d + 2], along(stride, d), along(padding, d), along(dilation, d)};
    const int64_t size =
        conv.transposed
            ? unfolded_size(call, input[d + 2], window) + along(extra, d)
            : window_count(call, input[d + 2], window);
    TORCH_CHECK(
        size > 0,
        "[aten.convolution.default] the kernel of size ",
        SizesRef(weight),
        " is larger than the input of size ",
        SizesRef(input));
    output.push_back(size);
  }
  return {std::move(output)};
}

std::vector<Sizes> convolution_backward_sizes(const OpCall& call) {
  const Convolution conv(call, 1);
  const CheckedSizes bias = call.is_none("bias_sizes")
                                ? CheckedSizes{call.tensor(0).sizes[1]}
                                : call.integers("bias_sizes");
  return {conv.input.sizes, conv.weight.sizes, bias};
}

// Of the groups that a rank has.
LocalArgument local_groups(size_t input) {
  return {"groups", [input](const OpCall& call, const LocalView& view) {
            const int64_t groups = call.integer("groups");
            const int64_t channels = call.tensor(input).sizes[1];
            if (groups == 1 || channels == 0) {
              return c10::IValue(groups);
            }
            const auto held = local_range(
                channels, 1, view.mesh, view.inputs[input], view.position);
            return c10::IValue(groups * held.size / channels);
          }};
}

}  // namespace

void add_convolution_rules(RuleTable& table) {
  const LocalArgument bias_sizes{
      "bias_sizes", [](const OpCall& call, const LocalView& view) {
        if (call.is_none("bias_sizes")) {
          return c10::IValue();
        }
        const CheckedSizes shape = view.output_shape(2);
        return c10::IValue(std::vector<int64_t>(shape.begin(), shape.end()));
      }};
  table.add(
      "aten::convolution",
      {.rows = convolution_rows,
       .output_sizes = convolution_sizes,
       .local_arguments = {local_groups(0)}});
  table.add(
      "aten::convolution_backward",
      {.rows = convolution_backward_rows,
       .output_sizes = convolution_backward_sizes,
       .local_arguments = {local_groups(1), bias_sizes}});
}

}  // namespace tessera::detail
