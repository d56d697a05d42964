// The rows of a call as text: what the tests of rules compare.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <string>
#include <vector>

#include "rules/pointwise.h"
#include "rules/rule_table.h"

namespace tessera::rule_tests {

// A tensor argument of these sizes, contiguous.
inline TensorArg tensor(Sizes sizes, c10::ScalarType dtype = c10::kFloat) {
  Sizes strides = row_major_strides(sizes);
  return {std::move(sizes), std::move(strides), dtype, true};
}

// An optional tensor that is not given.
inline TensorArg absent() { return {}; }

inline std::vector<int64_t> ints(std::initializer_list<int64_t> values) {
  return values;
}

using Plain = std::map<std::string, c10::IValue>;

// A call of `op` with plain arguments by name, the schema's defaults for the
// rest.
struct Call {
  Call(
      const std::string& op,
      std::vector<TensorArg> tensors,
      const Plain& plain = {})
      : handle(find(op)),
        arguments(make_arguments(plain)),
        call(handle.schema(), arguments, std::move(tensors)) {}

  const Rule& rule() const {
    const auto name = c10::toString(handle.operator_name());
    const Rule* rule = detail::rule_table().find(name);
    if (rule == nullptr && handle.hasTag(at::Tag::pointwise)) {
      rule = &detail::pointwise_rule();
    }
    TORCH_CHECK(rule != nullptr, name, " has no rule");
    return *rule;
  }

  c10::OperatorHandle handle;
  std::vector<c10::IValue> arguments;
  OpCall call;

 private:
  static c10::OperatorHandle find(const std::string& op) {
    const size_t dot = op.find('.');
    return c10::Dispatcher::singleton().findSchemaOrThrow(
        op.substr(0, dot).c_str(),
        dot == std::string::npos ? "" : op.substr(dot + 1).c_str());
  }

  std::vector<c10::IValue> make_arguments(const Plain& plain) const {
    std::vector<c10::IValue> values;
    size_t used = 0;
    for (const auto& argument : handle.schema().arguments()) {
      const auto given = plain.find(argument.name());
      if (given != plain.end()) {
        values.push_back(given->second);
        ++used;
      } else {
        values.push_back(argument.default_value().value_or(c10::IValue()));
      }
    }
    TORCH_CHECK(used == plain.size(), "an argument has no such name");
    return values;
  }
};

// "S(0),R->S(0) | ...", with a mark where the shards must be alike ("even") or
// may not be empty ("filled").
inline std::string printed(const Rows& rows) {
  std::string text;
  for (const Row& row : rows) {
    text += text.empty() ? "" : " | ";
    text += row.str();
    text += row.needs == Needs::Even       ? " even"
            : row.needs == Needs::NonEmpty ? " filled"
                                           : "";
  }
  return text;
}

inline std::string rows(
    const std::string& op,
    std::vector<TensorArg> tensors,
    const Plain& plain = {}) {
  const Call call(op, std::move(tensors), plain);
  const Rows rows = call.rule().rows(call.call);
  for (const Row& row : rows) {
    TORCH_CHECK(
        row.inputs.size() == call.call.tensor_count() &&
            row.outputs.size() == call.handle.schema().returns().size(),
        "a row of ",
        op,
        " has the wrong length: ",
        row.str());
  }
  return printed(rows);
}

// The rows that take no pending reduction: those that shard.
inline std::string shard_rows(
    const std::string& op,
    std::vector<TensorArg> tensors,
    const Plain& plain = {}) {
  const Call call(op, std::move(tensors), plain);
  Rows kept;
  for (const Row& row : call.rule().rows(call.call)) {
    bool shards = false;
    for (const Placement& input : row.inputs) {
      shards |= input.is_shard();
    }
    if (shards) {
      kept.push_back(row);
    }
  }
  return printed(kept);
}

// The sizes that the rule gives for the results: "[2, 3] [2]".
inline std::string output_sizes(
    const std::string& op,
    std::vector<TensorArg> tensors,
    const Plain& plain = {}) {
  const Call call(op, std::move(tensors), plain);
  std::string text;
  for (const Sizes& sizes : call.rule().output_sizes(call.call)) {
    text += text.empty() ? "[" : " [";
    for (size_t i = 0; i < sizes.size(); ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
    }
    text += "]";
  }
  return text;
}

}  // namespace tessera::rule_tests
