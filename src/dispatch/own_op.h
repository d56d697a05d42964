// Ops of our own, tessera::*, each defined in one place by a struct:
//
//   struct Lookup {
//     static constexpr const char* kSchema = "lookup(Tensor weight, ...)";
//     using Result = at::Tensor;  // or a std::tuple of tensors
//     // The arguments, in the order of the schema. Members may be structs of
//     // arguments themselves; an enum is an int of the schema.
//     struct Args {
//       at::Tensor weight;
//       ...
//     };
//     static Result on_data(const Args& args);  // plain tensors
//     static Result on_meta(const Args& args);  // meta tensors
//     // The gradient, of ops that have one: the tensors by which it is taken,
//     // what the backward pass needs, and the gradient of each of them.
//     static OpInputs inputs(const Args& args);
//     static void save(SavedContext*, const Args&, const Result&);
//     static Gradients backward(SavedContext*, const Gradients&);
//     // Of an op that is linear in its one differentiable argument: that.
//     static at::Tensor& linear_in(Args& args);
//   };
//
// Distributed tensors are served by the op's rule (rules/). define_op()
// registers all of it, call_op() calls it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <concepts>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "dispatch/grad_layout.h"
#include "dispatch/members.h"
#include "dispatch/op_plan.h"
#include "dispatch/op_registry.h"
#include "dispatch/tangents.h"

namespace tessera::detail {

using OpInputs = c10::SmallVector<at::Tensor, 2>;
using SavedContext = torch::autograd::AutogradContext;
using Gradients = torch::autograd::variable_list;

template <class T>
struct KeptValue : torch::CustomClassHolder {
  T value;
};

// Keeps any one value for the backward pass.
template <class T>
void keep(SavedContext* ctx, T value) {
  auto holder = c10::make_intrusive<KeptValue<T>>();
  holder->value = std::move(value);
  ctx->saved_data["kept"] = c10::IValue::make_capsule(std::move(holder));
}

template <class T>
const T& kept(SavedContext* ctx) {
  return static_cast<KeptValue<T>*>(ctx->saved_data["kept"].toCapsule().get())
      ->value;
}

// Whether autograd wants to know what is done with `tensor`.
inline bool records(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.requires_grad();
}

template <class T>
constexpr bool kIsTuple = false;
template <class... T>
constexpr bool kIsTuple<std::tuple<T...>> = true;

// References to all members, and to those of members, in order. A tuple is a
// struct whose members have no names.
template <class T>
auto leaves(T& value) {
  const auto each = [](auto&... part) {
    return std::tuple_cat(leaves(part)...);
  };
  if constexpr (HasMembers<T>) {
    return std::apply(each, members(value));
  } else if constexpr (kIsTuple<std::remove_const_t<T>>) {
    return std::apply(each, value);
  } else {
    return std::tie(value);
  }
}

// A tensor that the op writes: Tensor(a!) of a schema.
struct Written {
  Written() = default;
  explicit Written(at::Tensor& given) : tensor(given) {}
  at::Tensor tensor;
};

// Which part of a table or of a dimension a plain tensor holds: from `first`
// on, of `size` in all. Of distributed tensors the layout says it.
struct HeldPart {
  int64_t first = 0;
  std::optional<int64_t> size = std::nullopt;
};

// How the dispatcher passes a member.
template <class T>
struct Passed {
  using type = T;
};
template <class T>
  requires std::is_enum_v<T>
struct Passed<T> {
  using type = int64_t;
};
template <>
struct Passed<at::Tensor> {
  using type = const at::Tensor&;
};
template <>
struct Passed<std::optional<at::Tensor>> {
  using type = const std::optional<at::Tensor>&;
};
template <>
struct Passed<Written> {
  using type = at::Tensor&;
};

// An op of ATen that has a kernel of its own: what it gives, and the parts of
// its arguments. Its kernels take a tuple of them.
template <class R, class... Parts>
struct AtenOp {
  using Result = R;
  using Args = std::tuple<Parts...>;
};

// The functions that the dispatcher sees, made of those that take Args.
template <
    class Op,
    class Leaves = decltype(leaves(std::declval<typename Op::Args&>()))>
struct OpFunctions;

template <class Op, class... T>
struct OpFunctions<Op, std::tuple<T&...>> {
  using Args = typename Op::Args;
  using Result = typename Op::Result;
  using Signature = Result(typename Passed<T>::type...);

  template <Result (*kKernel)(const Args&)>
  static Result unpacked(typename Passed<T>::type... values) {
    Args args;
    leaves(args) = std::tuple<T...>(static_cast<T>(values)...);
    return kKernel(args);
  }

  static Result call(const Args& args) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow(full_name().c_str(), "")
                               .template typed<Signature>();
    return std::apply(
        [](const T&... value) {
          return op.call(static_cast<typename Passed<T>::type>(value)...);
        },
        leaves(args));
  }

  static Args args(c10::ArrayRef<c10::IValue> values) {
    Args args;
    size_t next = 0;
    std::apply(
        [&](T&... value) { ((value = values[next++].to<T>()), ...); },
        leaves(args));
    return args;
  }

  static torch::jit::Stack stack(const Args& args) {
    torch::jit::Stack values;
    std::apply(
        [&](const T&... value) {
          torch::jit::push(
              values, static_cast<typename Passed<T>::type>(value)...);
        },
        leaves(args));
    return values;
  }

  static std::string name() {
    const std::string schema = Op::kSchema;
    return schema.substr(0, schema.find('('));
  }
  static std::string full_name() { return "tessera::" + name(); }
};

// A kernel that takes Args, as the dispatcher calls it.
template <class Op, typename Op::Result (*kKernel)(const typename Op::Args&)>
constexpr auto kUnpacked = &OpFunctions<Op>::template unpacked<kKernel>;

// Calls the op through the dispatcher.
template <class Op>
typename Op::Result call_op(const typename Op::Args& args) {
  return OpFunctions<Op>::call(args);
}

// How a call on distributed tensors would be carried out, as text.
template <class Op>
std::string explain_op(const typename Op::Args& args) {
  static const OpInfo op(c10::Dispatcher::singleton().findSchemaOrThrow(
      OpFunctions<Op>::full_name().c_str(), ""));
  return explain_plan(op, OpFunctions<Op>::stack(args));
}

template <class Op>
concept HasGradient = requires { &Op::backward; };

// The op as a node of the autograd graph.
template <class Op>
class OpNode : public torch::autograd::Function<OpNode<Op>> {
 public:
  static Gradients forward(
      SavedContext* ctx,
      at::TensorList /*inputs*/,
      const typename Op::Args& args) {
    const auto result = below(args);
    Op::save(ctx, args, result);
    if constexpr (std::is_same_v<typename Op::Result, at::Tensor>) {
      return {result};
    } else {
      return std::apply(
          [](const auto&... part) { return Gradients{part...}; }, result);
    }
  }

  static Gradients backward(SavedContext* ctx, const Gradients& grads) {
    Gradients result = Op::backward(ctx, grads);
    result.emplace_back();  // of the arguments
    return result;
  }

  // Below autograd.
  static typename Op::Result below(const typename Op::Args& args) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    if constexpr (requires { Op::run(args); }) {
      return Op::run(args);
    } else {
      return call_op<Op>(args);
    }
  }
};

// The op, recorded where a gradient is wanted.
template <class Op>
typename Op::Result recorded_op(
    const typename Op::Args& args, const OpInputs& inputs) {
  const bool recorded =
      std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) {
        return records(input);
      });
  if (!recorded) {
    return OpNode<Op>::below(args);
  }
  keep_grad_layouts(inputs);
  auto results = OpNode<Op>::apply(at::TensorList(inputs), args);
  if constexpr (std::is_same_v<typename Op::Result, at::Tensor>) {
    return std::move(results[0]);
  } else {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return typename Op::Result(std::move(results[I])...);
    }(std::make_index_sequence<std::tuple_size_v<typename Op::Result>>());
  }
}

// Of an op that is linear in one of its arguments, and differentiable only in
// that: the argument.
template <class Op>
concept IsLinear = requires(typename Op::Args& args) {
  { Op::linear_in(args) } -> std::same_as<at::Tensor&>;
};

// The op on arguments of which one has a tangent.
template <class Op>
typename Op::Result op_with_tangent(
    const typename Op::Args& args, const OpInputs& inputs) {
  if constexpr (IsLinear<Op>) {
    auto change = args;
    auto& argument = Op::linear_in(change);
    argument = tangent_of(argument);
    const auto result = [&] {
      const c10::AutoFwGradMode value_only(false);
      return recorded_op<Op>(args, inputs);
    }();
    set_tangent(result, call_op<Op>(change));
    return result;
  } else {
    refuse_tangents(OpFunctions<Op>::name(), at::TensorList(inputs));
    return {};
  }
}

// The op, recorded where autograd wants to know. What the Autograd key runs.
template <class Op>
typename Op::Result differentiable_op(const typename Op::Args& args) {
  const OpInputs inputs = Op::inputs(args);
  return C10_UNLIKELY(has_tangent(at::TensorList(inputs)))
             ? op_with_tangent<Op>(args, inputs)
             : recorded_op<Op>(args, inputs);
}

// Registers the op.
template <class Op>
void define_op(OpRegistry& ops) {
  using Functions = OpFunctions<Op>;
  std::optional<torch::CppFunction> gradient;
  if constexpr (HasGradient<Op>) {
    gradient.emplace(&Functions::template unpacked<&differentiable_op<Op>>);
  }
  ops.define(
      Functions::name().c_str(),
      Op::kSchema,
      torch::CppFunction(&Functions::template unpacked<&Op::on_data>),
      torch::CppFunction(&Functions::template unpacked<&Op::on_meta>),
      std::move(gradient));
}

}  // namespace tessera::detail
