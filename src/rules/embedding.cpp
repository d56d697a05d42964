// Lookups in a table: column-wise, and by batches of indices.
#include "rules/rows.h"
#include "rules/rule_table.h"

namespace tessera::detail {
namespace {

// embedding(weight[v, d], indices[...]) -> out[..., d]
Rows embedding_rows(const OpCall& call) {
  const int64_t n = call.tensor(1).dim();
  Rows rows{{{S(1), R}, {S(n)}}};  // column-wise
  for (int64_t d = 0; d < n; ++d) {
    rows.push_back({{R, S(d)}, {S(d)}});  // batch
  }
  for (const ReduceOp op : kEveryReduction) {
    rows.push_back({{P(op), R}, {P(op)}});  // rows are copied as they are
  }
  return rows;
}

std::vector<Sizes> embedding_sizes(const OpCall& call) {
  const TensorArg& weight = call.tensor(0);
  TORCH_CHECK(
      weight.dim() == 2,
      "[aten.embedding.default] expected a weight of two dimensions, but got "
      "one of shape ",
      SizesRef(weight.sizes));
  Sizes sizes = call.tensor(1).sizes;
  sizes.push_back(weight.sizes[1]);
  return {sizes};
}

// embedding_dense_backward(grad[..., d], indices[...], num_weights) -> [v, d]
Rows embedding_backward_rows(const OpCall& call) {
  const int64_t n = call.tensor(1).dim();
  Rows rows{{{S(n), R}, {S(1)}}};  // column-wise
  // Frequencies are those of all indices, so that a part of them won't do.
  for (int64_t d = 0; d < n && !call.boolean("scale_grad_by_freq"); ++d) {
    rows.push_back({{S(d), S(d)}, {P(ReduceOp::Sum)}});  // batch
  }
  for (const ReduceOp op : kLinearReductions) {
    rows.push_back({{P(op), R}, {P(op)}});
  }
  return rows;
}

std::vector<Sizes> embedding_backward_sizes(const OpCall& call) {
  return {Sizes{call.integer("num_weights"), call.tensor(0).sizes.back()}};
}

}  // namespace

void add_embedding_rules(RuleTable& table) {
  table.add("aten::embedding", rule_of(embedding_rows, embedding_sizes));
  table.add(
      "aten::embedding_dense_backward",
      rule_of(embedding_backward_rows, embedding_backward_sizes));
}

}  // namespace tessera::detail
