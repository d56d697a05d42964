#include "dispatch/float_terms.h"

#include <c10/core/TensorOptions.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "core/terms.h"

namespace tessera::detail {

namespace {

using torch::jit::Stack;

bool is_half(c10::ScalarType dtype) { return accumulate_dtype(dtype) != dtype; }

bool is_half(const at::Tensor& tensor) {
  return tensor.defined() && is_half(tensor.scalar_type());
}

// The dtype of the shards of a tensor of the call, redistributed to `inputs`.
c10::ScalarType shard_dtype(
    const OpPlan& plan, c10::ArrayRef<Placements> inputs, size_t tensor) {
  const auto& spec = plan.inputs[tensor];
  return spec == nullptr ? c10::ScalarType::Undefined
                         : shard_dtype_in(*spec, inputs[tensor]);
}

bool takes_or_leaves_terms(
    const OpPlan& plan, c10::ArrayRef<Placements> inputs) {
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    if (plan.inputs[i] != nullptr &&
        shard_dtype(plan, inputs, i) != plan.inputs[i]->dtype) {
      return true;
    }
  }
  return std::any_of(
      plan.outputs.begin(), plan.outputs.end(), [](const SpecPtr& spec) {
        return spec != nullptr && spec->shard_dtype != spec->dtype;
      });
}

// Whether the argument says that results are of a half kind: none is that of
// the first tensor.
bool names_half(
    const c10::Argument& argument,
    const c10::IValue& value,
    const OpPlan& plan) {
  auto type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  if (type->kind() != c10::TypeKind::ScalarTypeType) {
    return false;
  }
  return value.isNone()
             ? plan.inputs[0] != nullptr && is_half(plan.inputs[0]->dtype)
             : is_half(value.toScalarType());
}

// mm.dtype or bmm.dtype, where the op is a product and its device has that.
std::optional<c10::OperatorHandle> float_product(
    const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  static const std::unordered_map<std::string_view, const char*> products = {
      {"aten::mm", "aten::mm"},
      {"aten::addmm", "aten::mm"},
      {"aten::bmm", "aten::bmm"},
      {"aten::baddbmm", "aten::bmm"}};
  const auto found = products.find(op.name);
  if (found == products.end()) {
    return std::nullopt;
  }
  const auto product =
      c10::Dispatcher::singleton().findSchema({found->second, "dtype"});
  const bool has_kernel =
      product.has_value() &&
      product->hasKernelForDispatchKey(c10::computeDispatchKey(
          std::nullopt, std::nullopt, args[0].toTensor().device()));
  return has_kernel ? product : std::nullopt;
}

// The arguments of a local call in float, and what goes back of what it wrote.
class FloatArguments {
 public:
  FloatArguments(const OpInfo& op, const FloatTerms& terms, Stack& stack) {
    for (const uint32_t argument : terms.dtypes) {
      stack[argument] = c10::kFloat;
    }
    for (const auto& [argument, element] : terms.converted) {
      const bool written = op.written_args[argument];
      if (element < 0) {
        convert(stack[argument], written);
      } else if (element == 0) {
        convert_list(stack[argument], written);
      }
    }
  }

  void write_back() const {
    for (const auto& [own, in_float] : written_) {
      own.copy_(in_float);
    }
  }

 private:
  void convert(c10::IValue& value, bool written) {
    if (!value.isTensor() || !is_half(value.toTensor())) {
      return;
    }
    auto in_float = value.toTensor().to(c10::kFloat);
    if (written) {
      written_.emplace_back(value.toTensor(), in_float);
    }
    value = std::move(in_float);
  }

  // All half elements of the list are converted.
  void convert_list(c10::IValue& value, bool written) {
    c10::impl::GenericList list(value.toList().elementType());
    for (c10::IValue element : value.toListRef()) {
      convert(element, written);
      list.push_back(std::move(element));
    }
    value = list;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> written_;
};

// A result as its spec wants it. Of a dtype that is only guessed (see
// learn_dtypes.h) half kinds alone are known to have become float.
at::Tensor as_planned(const SpecPtr& spec, at::Tensor result) {
  if (spec == nullptr || !result.defined() ||
      result.scalar_type() == spec->shard_dtype) {
    return result;
  }
  const bool was_half =
      is_half(spec->dtype) &&
      (is_half(result) || result.scalar_type() == c10::kFloat);
  return was_half ? result.to(spec->shard_dtype) : result;
}

// The results that are not written arguments, as their specs want them.
void convert_results(const OpInfo& op, const OpPlan& plan, Stack& stack) {
  size_t next = 0;
  for (size_t r = 0; r < op.returns.size(); ++r) {
    const auto& info = op.returns[r];
    if (info.kind == ReturnInfo::Kind::NotATensor ||
        info.kind == ReturnInfo::Kind::Written) {
      continue;
    }
    if (!info.is_list) {
      stack[r] =
          as_planned(plan.outputs[next++], std::move(stack[r]).toTensor());
      continue;
    }
    c10::List<at::Tensor> list;
    for (const auto& element : stack[r].toListRef()) {
      list.push_back(as_planned(plan.outputs[next++], element.toTensor()));
    }
    stack[r] = std::move(list);
  }
}

// mm, bmm(a, b); addmm, baddbmm(added, a, b, beta, alpha).
void multiply_in_float(const c10::OperatorHandle& product, Stack& stack) {
  const bool adds = stack.size() > 2;
  const auto first = stack.begin() + (adds ? 1 : 0);
  Stack factors{first[0], first[1], c10::kFloat};
  product.callBoxed(&factors);
  at::Tensor result = std::move(factors[0]).toTensor();
  if (adds) {
    const auto beta = stack[3].toScalar();
    result.mul_(stack[4].toScalar());
    // What is added times 0 is not looked at.
    if (!beta.equal(0)) {
      result.add_(stack[0].toTensor(), beta);
    }
  }
  stack = {std::move(result)};
}

}  // namespace

std::shared_ptr<const FloatTerms> plan_float_terms(
    const OpInfo& op,
    const OpPlan& plan,
    c10::ArrayRef<c10::IValue> args,
    c10::ArrayRef<Placements> inputs) {
  // A view has the shards of what it views.
  if (op.is_view || !takes_or_leaves_terms(plan, inputs)) {
    return nullptr;
  }
  auto terms = std::make_shared<FloatTerms>();
  const auto& arguments = op.handle.schema().arguments();
  for (size_t a = 0; a < args.size(); ++a) {
    if (names_half(arguments[a], args[a], plan)) {
      terms->dtypes.push_back(static_cast<uint32_t>(a));
    }
  }
  if (!terms->dtypes.empty()) {
    return terms;
  }
  const auto& own_dtype = op.rule()->own_dtype_arguments;
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    const auto& name = arguments[plan.slots[i].argument].name();
    if (is_half(shard_dtype(plan, inputs, i)) &&
        std::find(own_dtype.begin(), own_dtype.end(), name) ==
            own_dtype.end()) {
      terms->converted.push_back(plan.slots[i]);
    }
  }
  if (terms->converted.size() == plan.inputs.size()) {
    terms->product = float_product(op, args);
  }
  return terms;
}

void call_in_float(const OpInfo& op, const OpPlan& plan, Stack& stack) {
  if (plan.in_float->product.has_value()) {
    multiply_in_float(*plan.in_float->product, stack);
    convert_results(op, plan, stack);
    return;
  }
  const FloatArguments arguments(op, *plan.in_float, stack);
  op.handle.callBoxed(&stack);
  arguments.write_back();
  convert_results(op, plan, stack);
}

}  // namespace tessera::detail
