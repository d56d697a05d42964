#include "rules/einsum.h"

#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include "rules/rows.h"

namespace tessera::detail {
namespace {

struct Formula {
  std::vector<std::string> operands;
  std::string result;
  std::string letters;  // each once, those of the result first
};

Formula parse(std::string_view text) {
  const size_t arrow = text.find("->");
  const size_t comma = text.find(',');
  TORCH_INTERNAL_ASSERT(
      arrow != std::string_view::npos && comma < arrow,
      "not a formula of two operands: ",
      std::string(text));
  Formula formula{
      {std::string(text.substr(0, comma)),
       std::string(text.substr(comma + 1, arrow - comma - 1))},
      std::string(text.substr(arrow + 2)),
      {}};
  for (const auto& part :
       {formula.result, formula.operands[0], formula.operands[1]}) {
    for (const char letter : part) {
      if (formula.letters.find(letter) == std::string::npos) {
        formula.letters += letter;
      }
    }
  }
  return formula;
}

Placement shard_at(const std::string& operand, char letter) {
  const size_t at = operand.find(letter);
  return at == std::string::npos ? R : S(static_cast<int64_t>(at));
}

int64_t size_of(
    const Formula& formula, char letter, c10::ArrayRef<TensorArg> factors) {
  for (size_t i = 0; i < factors.size(); ++i) {
    const size_t at = formula.operands[i].find(letter);
    if (at != std::string::npos && at < factors[i].sizes.size()) {
      return factors[i].sizes[at];
    }
  }
  TORCH_INTERNAL_ASSERT(false, "no operand has ", std::string(1, letter));
}

// The bias has the result's dimension `dim` only at full size.
Placement bias_shard(
    const TensorArg& bias, int64_t dim, const CheckedSizes& result) {
  const int64_t own = dim - (static_cast<int64_t>(result.size()) - bias.dim());
  return own >= 0 && bias.sizes[own] == result[dim] ? S(own) : R;
}

class EinsumRule {
 public:
  EinsumRule(std::string_view formula, bool biased)
      : formula_(parse(formula)), biased_(biased) {}

  Rows rows(const OpCall& call) const {
    const CheckedSizes result = result_sizes(call);
    Rows rows;
    for (const char letter : formula_.letters) {
      // Cutting one row leaves all ranks but the first with nothing to do, and
      // views that take the dimension away would have to undo it.
      if (size_of(formula_, letter, factors(call)) == 1) {
        continue;
      }
      const size_t at = formula_.result.find(letter);
      const bool summed = at == std::string::npos;
      Row row({}, {summed ? P(ReduceOp::Sum) : S(static_cast<int64_t>(at))});
      if (biased_) {
        row.inputs.push_back(
            summed
                ? P(ReduceOp::Sum)
                : bias_shard(call.tensor(0), static_cast<int64_t>(at), result));
      }
      for (const auto& operand : formula_.operands) {
        row.inputs.push_back(shard_at(operand, letter));
      }
      rows.push_back(std::move(row));
    }
    for (const ReduceOp op : kLinearReductions) {
      for (size_t pending = 0; pending < formula_.operands.size(); ++pending) {
        Row row({}, {P(op)});
        row.inputs.assign(formula_.operands.size() + (biased_ ? 1 : 0), R);
        row.inputs[pending + (biased_ ? 1 : 0)] = P(op);
        if (biased_) {
          row.inputs[0] = P(op);
        }
        rows.push_back(std::move(row));
      }
    }
    return rows;
  }

  CheckedSizes result_sizes(const OpCall& call) const {
    CheckedSizes sizes;
    for (const char letter : formula_.result) {
      sizes.push_back(size_of(formula_, letter, factors(call)));
    }
    return sizes;
  }

 private:
  c10::ArrayRef<TensorArg> factors(const OpCall& call) const {
    return call.tensors().slice(biased_ ? 1 : 0, formula_.operands.size());
  }

  Formula formula_;
  bool biased_;
};

Rule make_rule(std::string_view formula, bool biased) {
  const EinsumRule einsum(formula, biased);
  Rule rule =
      rule_of([einsum](const OpCall& call) { return einsum.rows(call); });
  rule.ignores_numbers = true;
  return rule;
}

}  // namespace

Rule einsum_rule(std::string_view formula) {
  return make_rule(formula, /*biased=*/false);
}

Rule biased_einsum_rule(std::string_view formula) {
  return make_rule(formula, /*biased=*/true);
}

}  // namespace tessera::detail
