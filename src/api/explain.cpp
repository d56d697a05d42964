#include "dispatch/explain.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "dispatch/tensor.h"
#include "tessera/debug.h"

namespace tessera {

namespace {

using Arguments = std::vector<c10::IValue>;

// "mm" is aten's; "aten::add.Tensor" has an overload.
c10::OperatorName parse_name(std::string_view text) {
  std::string name(text);
  std::string overload;
  if (name.find("::") == std::string::npos) {
    name = "aten::" + name;
  }
  if (const auto dot = name.find('.'); dot != std::string::npos) {
    overload = name.substr(dot + 1);
    name.resize(dot);
  }
  return {std::move(name), overload == "default" ? "" : std::move(overload)};
}

// The op of that name; without an overload all of them, that without a name
// first, those that write into an `out` argument last.
std::vector<c10::OperatorHandle> candidates(std::string_view text) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto wanted = parse_name(text);
  std::vector<c10::OperatorHandle> found;
  if (const auto op = dispatcher.findSchema(wanted)) {
    found.push_back(*op);
  }
  if (text.find('.') != std::string_view::npos) {
    return found;
  }
  std::vector<c10::OperatorName> names;
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name == wanted.name && !name.overload_name.empty()) {
      names.push_back(name);
    }
  }
  const auto rank = [](const c10::OperatorName& name) {
    const bool writes = name.overload_name.find("out") != std::string::npos;
    return std::make_pair(writes, name.overload_name);
  };
  std::sort(names.begin(), names.end(), [&](const auto& a, const auto& b) {
    return rank(a) < rank(b);
  });
  for (const auto& name : names) {
    if (const auto op = dispatcher.findSchema(name)) {
      found.push_back(*op);
    }
  }
  return found;
}

// Whether the op takes these arguments; adds the default values of those left
// out.
bool fits(const c10::FunctionSchema& schema, Arguments& arguments) {
  try {
    schema.checkAndNormalizeInputs(arguments);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Finds the overload that takes what `give` hands over for it.
template <typename Give>
std::string explain_first_fitting(std::string_view name, const Give& give) {
  const auto ops = candidates(name);
  TORCH_CHECK_VALUE(
      !ops.empty(),
      "[explain] there is no op ",
      name,
      ": expected a name such as aten::mm, mm or aten::add.Tensor");
  std::string schemas;
  for (const auto& op : ops) {
    std::optional<Arguments> arguments = give(op.schema());
    if (arguments.has_value() && fits(op.schema(), *arguments)) {
      return detail::explain_op(op, *arguments);
    }
    schemas += "\n  " + c10::toString(op.schema());
  }
  TORCH_CHECK_VALUE(
      false, "[explain] the arguments do not fit ", name, ":", schemas);
}

at::Tensor meta_tensor(const SpecPtr& spec) {
  if (spec == nullptr) {
    return {};
  }
  detail::Shards shards;
  for (const int64_t position : spec->mesh.local_positions()) {
    shards.push_back(detail::empty_shard(*spec, position, c10::kMeta));
  }
  return detail::make_distributed(spec, std::move(shards));
}

bool is_tensor(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::OptionalType) {
    return is_tensor(*type.castRaw<c10::OptionalType>()->getElementType());
  }
  return type.kind() == c10::TypeKind::TensorType;
}

bool is_tensor_list(const c10::Type& type) {
  return type.kind() == c10::TypeKind::ListType &&
         is_tensor(*type.castRaw<c10::ListType>()->getElementType());
}

// Assigns specs and other values to the arguments of a schema; nullopt if
// some are left over or missing.
std::optional<Arguments> assign_arguments(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<SpecPtr> specs,
    c10::ArrayRef<c10::IValue> others) {
  Arguments arguments;
  for (const auto& argument : schema.arguments()) {
    const c10::Type& type = *argument.type();
    if (is_tensor_list(type)) {
      c10::List<at::Tensor> list;
      for (const auto& spec : specs) {
        list.push_back(meta_tensor(spec));
      }
      specs = {};
      arguments.emplace_back(std::move(list));
    } else if (is_tensor(type) && !specs.empty()) {
      const auto tensor = meta_tensor(specs.front());
      arguments.push_back(
          tensor.defined() ? c10::IValue(tensor) : c10::IValue());
      specs = specs.slice(1);
    } else if (!is_tensor(type) && !others.empty()) {
      arguments.push_back(others.front());
      others = others.slice(1);
    } else if (argument.default_value().has_value()) {
      arguments.push_back(*argument.default_value());
    } else {
      return std::nullopt;
    }
  }
  return specs.empty() && others.empty() ? std::optional(arguments)
                                         : std::nullopt;
}

}  // namespace

std::string explain(std::string_view op, c10::ArrayRef<c10::IValue> arguments) {
  return explain_first_fitting(op, [&](const c10::FunctionSchema&) {
    return std::optional<Arguments>(arguments.vec());
  });
}

std::string explain(
    std::string_view op,
    c10::ArrayRef<SpecPtr> specs,
    c10::ArrayRef<c10::IValue> others) {
  return explain_first_fitting(op, [&](const c10::FunctionSchema& schema) {
    return assign_arguments(schema, specs, others);
  });
}

std::string explain(
    const std::string& name,
    const std::function<void(at::TensorList)>& call,
    at::TensorList tensors) {
  TORCH_CHECK_VALUE(
      std::any_of(
          tensors.begin(),
          tensors.end(),
          [](const at::Tensor& tensor) { return detail::is_dtensor(tensor); }),
      "[explain] none of the tensors given to ",
      name,
      " is distributed: make them with distribute_tensor or empty(shape, mesh, "
      "placements)");
  return detail::explain_call(name, call, tensors);
}

}  // namespace tessera
