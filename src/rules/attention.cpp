// scaled_dot_product_attention, in each of the kernels that carry it out. The
// one that is made of other ops (math) needs no rule.
#include <string>
#include <utility>

#include "rules/layer_families.h"
#include "rules/rows.h"

namespace tessera::detail {
namespace {

// query[n, h, l, e], key[n, g, s, e], value[n, g, s, v], mask[..., l, s]
struct Shapes {
  const TensorArg& query;
  const TensorArg& key;
  const TensorArg& value;
  const TensorArg* mask;  // nullptr where the kernel takes none

  // The mask's placement when dimension `dim` of the query is sharded: it may
  // lack the dimension, or have size 1 there.
  Placement mask_placement(int64_t dim) const {
    if (mask == nullptr || !mask->defined) {
      return R;
    }
    const int64_t own = dim - (query.dim() - mask->dim());
    return own >= 0 && mask->sizes[own] != 1 ? S(own) : R;
  }
};

// `query` is the index of the query, which key and value follow; `mask` that of
// the mask, or -1.
Shapes shapes_of(const OpCall& call, int query, int mask) {
  return {
      call.tensor(query),
      call.tensor(query + 1),
      call.tensor(query + 2),
      mask < 0 ? nullptr : &call.tensor(mask)};
}

// Kernels draw by themselves, each rank its own numbers.
void check_dropout(const OpCall& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !call.has("dropout_p") || call.argument("dropout_p").toDouble() == 0,
      "[",
      op_display_name(call.schema()),
      "] dropout in a fused attention kernel is not supported on distributed "
      "tensors: select the math backend (sdpa_kernel(SDPBackend.MATH)), which "
      "draws the same numbers in every layout");
}

// An op of our own, which is told where a rank's rows of the query begin.
bool knows_rows(const OpCall& call) { return call.has("first_row"); }

// Rows of the query can be apart unless the mask of a causal call would have to
// know which rows they are.
bool rows_apart(const OpCall& call) {
  return knows_rows(call) || !call.boolean("is_causal");
}

Needs attention_needs(const OpCall& call, const Shapes& shapes, int64_t dim) {
  if (dim == 2 && knows_rows(call)) {
    return Needs::Nothing;
  }
  // Groups of query heads go with their key head.
  const bool grouped = dim == 1 && shapes.query.sizes[1] != shapes.key.sizes[1];
  return grouped ? Needs::Even : Needs::NonEmpty;
}

// The op is linear in tensor `input`, of which the first `outputs` results are
// made; the others do not depend on it.
void add_linear(Rows& rows, const OpCall& call, size_t input, size_t outputs) {
  for (const ReduceOp op : kLinearReductions) {
    Row row({}, {});
    row.inputs.assign(call.tensor_count(), R);
    row.outputs.assign(call.schema().returns().size(), R);
    row.inputs[input] = P(op);
    for (size_t o = 0; o < outputs; ++o) {
      row.outputs[o] = P(op);
    }
    rows.push_back(std::move(row));
  }
}

// Whether parts of the query's rows have parts of the logsumexp. Of the
// memory-efficient kernel it has more rows than the query, a multiple of 32.
enum class Logsumexp { kByRow, kPadded };

// Rows of samples, of heads and, where they do not depend on each other, of
// queries; row_for(dimension, placement of the keys) gives each.
template <typename RowFor>
Rows sharded_rows(
    const OpCall& call,
    const Shapes& shapes,
    Logsumexp logsumexp,
    const RowFor& row_for) {
  if (shapes.query.dim() != 4) {
    return {};
  }
  Rows rows{row_for(0, S(0)), row_for(1, S(1))};
  if (rows_apart(call) && logsumexp == Logsumexp::kByRow) {
    rows.push_back(row_for(2, R));
  }
  return rows;
}

Rows with_linear_rows(
    const OpCall& call, Rows rows, size_t input, size_t outputs) {
  if (!rows.empty()) {
    add_linear(rows, call, input, outputs);
  }
  return rows;
}

// (query, key, value, mask?) -> (output, logsumexp, others...)
struct ForwardArgs {
  int mask;  // -1 for none
  Logsumexp logsumexp_rows = Logsumexp::kByRow;
};

Rows attention_rows(const OpCall& call, ForwardArgs args) {
  check_dropout(call);
  const int mask = args.mask;
  const auto shapes = shapes_of(call, 0, mask);
  const auto row_for = [&](int64_t dim, const Placement& keys) {
    Row row({}, {}, attention_needs(call, shapes, dim));
    row.inputs.assign(call.tensor_count(), R);
    row.outputs.assign(call.schema().returns().size(), R);
    row.inputs[0] = S(dim);
    row.inputs[1] = row.inputs[2] = keys;
    if (mask >= 0) {
      row.inputs[mask] = shapes.mask_placement(dim);
    }
    row.outputs[0] = row.outputs[1] = S(dim);
    return row;
  };
  return with_linear_rows(
      call, sharded_rows(call, shapes, args.logsumexp_rows, row_for), 2, 1);
}

// (grad, query, key, value, [mask,] output, logsumexp, others..., [mask]) ->
// (grad_query, grad_key, grad_value, [grad_mask])
struct BackwardArgs {
  int output;
  int logsumexp;
  int mask;  // -1 for none
  Logsumexp logsumexp_rows = Logsumexp::kByRow;
};

Rows attention_backward_rows(const OpCall& call, BackwardArgs args) {
  check_dropout(call);
  const auto shapes = shapes_of(call, 1, args.mask);
  const Placement sum = P(ReduceOp::Sum);
  const auto row_for = [&](int64_t dim, const Placement& keys) {
    Row row({}, {}, attention_needs(call, shapes, dim));
    row.inputs.assign(call.tensor_count(), R);
    row.inputs[0] = row.inputs[1] = S(dim);
    row.inputs[2] = row.inputs[3] = keys;
    row.inputs[args.output] = row.inputs[args.logsumexp] = S(dim);
    if (args.mask >= 0) {
      row.inputs[args.mask] = shapes.mask_placement(dim);
    }
    const Placement key_grads = keys == R ? sum : keys;
    row.outputs = {S(dim), key_grads, key_grads};
    if (call.schema().returns().size() > 3) {
      const auto mask = shapes.mask_placement(dim);
      row.outputs.push_back(mask == R ? sum : mask);
    }
    return row;
  };
  return with_linear_rows(
      call,
      sharded_rows(call, shapes, args.logsumexp_rows, row_for),
      0,
      call.schema().returns().size());
}

CheckedSizes output_size(const OpCall& call) {
  const CheckedSizes& query = call.tensor(0).sizes;
  return {query[0], query[1], query[2], call.tensor(2).sizes[3]};
}

std::vector<Sizes> cpu_sizes(const OpCall& call) {
  const CheckedSizes& query = call.tensor(0).sizes;
  return {output_size(call), CheckedSizes{query[0], query[1], query[2]}};
}

// (output, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, rng_state, unused,
// debug_attn_mask); the bounds of sequences are undefined here.
std::vector<Sizes> flash_sizes(const OpCall& call) {
  const CheckedSizes& query = call.tensor(0).sizes;
  return {
      output_size(call),
      CheckedSizes{query[0], query[1], query[2]},
      CheckedSizes{0},
      CheckedSizes{0},
      CheckedSizes{},
      CheckedSizes{},
      CheckedSizes{2},
      CheckedSizes{},
      CheckedSizes{0}};
}

// As flash_sizes, with a seed of one number.
std::vector<Sizes> cudnn_sizes(const OpCall& call) {
  auto sizes = flash_sizes(call);
  sizes[1].push_back(1);
  sizes[6] = {};
  return sizes;
}

std::vector<Sizes> backward_sizes(const OpCall& call) {
  return {call.tensor(1).sizes, call.tensor(2).sizes, call.tensor(3).sizes};
}

// Where a rank's rows of the query begin; `query` is its index.
LocalArgument first_query_row(size_t query) {
  return {"first_row", [query](const OpCall& call, const LocalView& view) {
            const auto held = local_range(
                call.tensor(query).sizes[2],
                2,
                view.mesh,
                view.inputs[query],
                view.position);
            return c10::IValue(held.begin);
          }};
}

using SizesOf = std::vector<Sizes> (*)(const OpCall&);

Rule attention_rule(ForwardArgs args, SizesOf sizes) {
  Rule rule{[args](const OpCall& call) { return attention_rows(call, args); }};
  rule.output_sizes = sizes;
  return rule;
}

Rule attention_backward_rule(BackwardArgs args, SizesOf sizes) {
  Rule rule{[args](const OpCall& call) {
    return attention_backward_rows(call, args);
  }};
  rule.output_sizes = sizes;
  return rule;
}

}  // namespace

// Those of CUDA have meta kernels only where torch's Python package is loaded.
// The memory-efficient one is made of ops of our own (ops/attention.cpp), as
// are causal calls on the CPU (ops/causal_attention.cpp).
void add_attention_rules(RuleTable& table) {
  const std::string prefix = "aten::_scaled_dot_product_";
  table.add(prefix + "flash_attention_for_cpu", attention_rule({3}, cpu_sizes));
  table.add(
      prefix + "flash_attention_for_cpu_backward",
      attention_backward_rule({4, 5, 6}, backward_sizes));
  Rule causal = attention_rule({-1}, nullptr);
  causal.local_arguments = {first_query_row(0)};
  table.add("tessera::causal_attention", causal);
  Rule causal_backward = attention_backward_rule({4, 5, -1}, nullptr);
  causal_backward.local_arguments = {first_query_row(1)};
  table.add("tessera::causal_attention_backward", causal_backward);
  table.add(prefix + "flash_attention", attention_rule({-1}, flash_sizes));
  table.add(
      prefix + "flash_attention_backward",
      attention_backward_rule({4, 5, -1}, backward_sizes));
  table.add(
      "tessera::efficient_attention",
      attention_rule({3, Logsumexp::kPadded}, nullptr));
  table.add(
      "tessera::efficient_attention_backward",
      attention_backward_rule({5, 6, 4, Logsumexp::kPadded}, nullptr));
  table.add(prefix + "cudnn_attention", attention_rule({3}, cudnn_sizes));
  table.add(
      prefix + "cudnn_attention_backward",
      attention_backward_rule({4, 5, 8}, backward_sizes));
}

}  // namespace tessera::detail
