#include "tessera/rule.h"

#include <c10/core/SymInt.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>

#include <utility>

#include "rules/rule_table.h"

namespace tessera {
namespace {

// The position of an argument in the schema; -1 if it has none of that name.
int64_t find_argument(
    const c10::FunctionSchema& schema, std::string_view name) {
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

[[noreturn]] void throw_type(
    const c10::FunctionSchema& schema,
    const char* expected,
    std::string_view name,
    const c10::IValue& value) {
  TORCH_CHECK_TYPE(
      false,
      "[OpCall::",
      expected,
      " as argument \"",
      std::string(name),
      "\" of ",
      detail::op_display_name(schema),
      ", but got ",
      value.tagKind(),
      "; test is_none() first where the argument is optional");
}

void append(std::string& text, c10::ArrayRef<Placement> placements) {
  for (size_t i = 0; i < placements.size(); ++i) {
    if (i > 0) {
      text += ',';
    }
    text += placements[i].str();
  }
}

}  // namespace

OpCall::OpCall(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> arguments,
    std::vector<TensorArg> tensors)
    : schema_(schema), arguments_(arguments), tensors_(std::move(tensors)) {
  TORCH_INTERNAL_ASSERT(
      arguments_.size() == schema_.arguments().size(),
      "a call of ",
      schema_,
      " with ",
      arguments_.size(),
      " arguments");
}

const TensorArg& OpCall::tensor(size_t index) const {
  TORCH_CHECK_INDEX(
      index < tensors_.size(),
      "[",
      detail::op_display_name(schema_),
      "] expected more than ",
      index,
      " tensors, but got ",
      tensors_.size());
  return tensors_[index];
}

bool OpCall::has(std::string_view name) const {
  return find_argument(schema_, name) >= 0;
}

const c10::IValue& OpCall::argument(std::string_view name) const {
  const int64_t index = find_argument(schema_, name);
  TORCH_CHECK_VALUE(
      index >= 0,
      "[OpCall::argument] expected the name of an argument, but ",
      schema_,
      " has none called \"",
      std::string(name),
      "\"");
  return arguments_[index];
}

bool OpCall::is_none(std::string_view name) const {
  const int64_t index = find_argument(schema_, name);
  return index < 0 || arguments_[index].isNone();
}

int64_t OpCall::integer(std::string_view name) const {
  const c10::IValue& value = argument(name);
  if (value.isInt()) {
    return value.toInt();
  }
  if (value.isSymInt()) {
    return value.toSymInt().guard_int(__FILE__, __LINE__);
  }
  if (value.isBool()) {
    return value.toBool() ? 1 : 0;
  }
  throw_type(schema_, "integer] expected an integer", name, value);
}

bool OpCall::boolean(std::string_view name) const {
  const c10::IValue& value = argument(name);
  if (value.isBool()) {
    return value.toBool();
  }
  if (value.isInt()) {
    return value.toInt() != 0;
  }
  throw_type(schema_, "boolean] expected a bool", name, value);
}

CheckedSizes OpCall::integers(std::string_view name) const {
  const c10::IValue& value = argument(name);
  if (value.isNone()) {
    return {};
  }
  if (value.isIntList()) {
    const auto list = value.toIntList();
    return Sizes(list.begin(), list.end());
  }
  if (value.isSymIntList() || value.isList()) {
    // The dispatcher boxes SymInt[] as it comes: elements may be of either kind
    // in one list.
    CheckedSizes integers;
    for (const c10::IValue& element : value.toListRef()) {
      TORCH_CHECK_TYPE(
          element.isInt() || element.isSymInt(),
          "[OpCall::integers] expected integers in argument \"",
          std::string(name),
          "\" of ",
          detail::op_display_name(schema_),
          ", but got ",
          element.tagKind());
      integers.push_back(
          element.isInt() ? element.toInt()
                          : element.toSymInt().guard_int(__FILE__, __LINE__));
    }
    return integers;
  }
  return {integer(name)};
}

int64_t OpCall::dimension(std::string_view name, int64_t ndim) const {
  return c10::maybe_wrap_dim(integer(name), ndim);
}

CheckedSizes OpCall::dimensions(std::string_view name, int64_t ndim) const {
  CheckedSizes dims = is_none(name) ? CheckedSizes{} : integers(name);
  if (dims.empty()) {
    for (int64_t d = 0; d < ndim; ++d) {
      dims.push_back(d);
    }
    return dims;
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    dims[i] = c10::maybe_wrap_dim(dims[i], ndim);
    for (size_t j = 0; j < i; ++j) {
      TORCH_CHECK(
          dims[i] != dims[j],
          "dim ",
          dims[i],
          " appears multiple times in the list of dims");
    }
  }
  if (ndim == 0) {
    // 0 and -1 name the dimension that a number does not have.
    dims.clear();
  }
  return dims;
}

std::string Row::str() const {
  std::string text;
  append(text, inputs);
  text += "->";
  append(text, outputs);
  return text;
}

std::string to_string(const Rows& rows) {
  std::string text;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i > 0) {
      text += " | ";
    }
    text += rows[i].str();
  }
  return text;
}

void register_rule(std::string_view op, Rule rule) {
  TORCH_CHECK_VALUE(
      rule.rows != nullptr,
      "[register_rule] the rule of ",
      std::string(op),
      " has no function that gives its rows; set Rule::rows");
  detail::rule_table().add(op, std::move(rule));
}

}  // namespace tessera
