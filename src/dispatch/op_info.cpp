#include "dispatch/op_info.h"

#include <ATen/core/jit_type.h>
#include <ATen/core/op_registration/op_registration.h>

#include "rules/pointwise.h"
#include "rules/rule_table.h"

namespace tessera::detail {

namespace {

bool is_tensor_type(const c10::TypePtr& type) {
  return type->isSubtypeOf(*c10::OptionalType::ofTensor());
}

bool is_tensor_list_type(const c10::TypePtr& type) {
  const auto inner = type->cast<c10::OptionalType>();
  const auto list =
      (inner ? inner->getElementType() : type)->cast<c10::ListType>();
  return list && is_tensor_type(list->getElementType());
}

ArgKind kind_of(const c10::TypePtr& type) {
  if (is_tensor_type(type)) {
    return ArgKind::Tensor;
  }
  if (is_tensor_list_type(type)) {
    return ArgKind::TensorList;
  }
  const auto optional = type->cast<c10::OptionalType>();
  switch ((optional ? optional->getElementType() : type)->kind()) {
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
      return ArgKind::Number;
    case c10::TypeKind::GeneratorType:
      return ArgKind::Unread;
    default:
      return ArgKind::Plain;
  }
}

// The argument whose alias set a return shares.
int32_t aliased_argument(
    const c10::FunctionSchema& schema, const c10::AliasInfo& returned) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* info = schema.arguments()[i].alias_info();
    if (info == nullptr) {
      continue;
    }
    for (const auto& set : returned.beforeSets()) {
      if (info->beforeSets().count(set) != 0) {
        return static_cast<int32_t>(i);
      }
    }
  }
  return -1;
}

// Batch norms write the running statistics although their schema does not say
// so; native_batch_norm is made of others where it does.
bool is_running_statistic(
    const c10::FunctionSchema& schema, const c10::Argument& argument) {
  return schema.name().find("batch_norm") != std::string::npos &&
         schema.name() != "aten::native_batch_norm" &&
         schema.name().find("backward") == std::string::npos &&
         schema.name().find("no_training") == std::string::npos &&
         schema.name().find("functional") == std::string::npos &&
         (argument.name() == "running_mean" ||
          argument.name() == "running_var");
}

ReturnInfo return_info(
    const c10::FunctionSchema& schema, const c10::Argument& ret) {
  ReturnInfo info;
  info.is_list = is_tensor_list_type(ret.type());
  if (!info.is_list && !is_tensor_type(ret.type())) {
    info.kind = ReturnInfo::Kind::NotATensor;
  } else if (const auto* alias = ret.alias_info()) {
    info.kind =
        alias->isWrite() ? ReturnInfo::Kind::Written : ReturnInfo::Kind::View;
    info.argument = aliased_argument(schema, *alias);
    // Views of a list's elements alias the argument through a contained set.
    if (info.argument < 0) {
      info.argument = 0;
    }
  }
  return info;
}

}  // namespace

OpInfo::OpInfo(const c10::OperatorHandle& op)
    : handle(op),
      name(c10::toString(op.operator_name())),
      display_name(op_display_name(op.schema())) {
  const auto& schema = op.schema();
  for (const auto& argument : schema.arguments()) {
    args.push_back(kind_of(argument.type()));
    const auto* alias = argument.alias_info();
    written_args.push_back(
        (alias != nullptr && alias->isWrite()) ||
        is_running_statistic(schema, argument));
    writes |= written_args.back();
  }
  only_writes = writes;
  for (const auto& ret : schema.returns()) {
    returns.push_back(return_info(schema, ret));
    is_view |= returns.back().kind == ReturnInfo::Kind::View;
    returns_list |= returns.back().is_list;
    only_writes &= returns.back().kind == ReturnInfo::Kind::Written;
  }
}

const Rule* OpInfo::find_rule() const {
  const Rule* rule = rule_table().find(name);
  if (rule == nullptr && handle.hasTag(at::Tag::pointwise)) {
    rule = &pointwise_rule();
  }
  rule_.store(rule, std::memory_order_release);
  return rule;
}

}  // namespace tessera::detail
