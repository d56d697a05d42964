// The template parts of module.h: finding the tensors among the arguments and
// results of a forward of any signature.
#pragma once

#include "tessera/module.h"

namespace tessera {

namespace detail {

// The part of distribute_module that knows no types. Warns of functions in the
// older form.
TESSERA_API void prepare_module(
    torch::nn::Module& module,
    const DeviceMesh& mesh,
    const PartitionFn& partition_fn,
    const ModuleFn& input_fn,
    const ModuleFn& output_fn);

// Calls fn(at::Tensor&) for each defined tensor in `value`, in order.
template <typename T, typename Fn>
void for_each_tensor(T& value, const Fn& fn);

template <typename T>
struct Inside {  // nothing is known to be in there
  template <typename Fn>
  static void visit(T&, const Fn&) {}
};
template <>
struct Inside<at::Tensor> {
  template <typename Fn>
  static void visit(at::Tensor& value, const Fn& fn) {
    if (value.defined()) fn(value);
  }
};
template <typename T>
struct Inside<std::optional<T>> {
  template <typename Fn>
  static void visit(std::optional<T>& value, const Fn& fn) {
    if (value.has_value()) for_each_tensor(*value, fn);
  }
};
template <typename T>
struct Inside<std::vector<T>> {
  template <typename Fn>
  static void visit(std::vector<T>& value, const Fn& fn) {
    if constexpr (!std::same_as<T, bool>) {
      for (auto& element : value) for_each_tensor(element, fn);
    }
  }
};
template <typename... Ts>
struct Inside<std::tuple<Ts...>> {
  template <typename Fn>
  static void visit(std::tuple<Ts...>& value, const Fn& fn) {
    std::apply(
        [&](auto&... parts) { (for_each_tensor(parts, fn), ...); }, value);
  }
};
template <typename A, typename B>
struct Inside<std::pair<A, B>> {
  template <typename Fn>
  static void visit(std::pair<A, B>& value, const Fn& fn) {
    for_each_tensor(value.first, fn);
    for_each_tensor(value.second, fn);
  }
};
template <typename T, size_t N>
struct Inside<std::array<T, N>> {
  template <typename Fn>
  static void visit(std::array<T, N>& value, const Fn& fn) {
    for (auto& element : value) for_each_tensor(element, fn);
  }
};

template <typename T, typename Fn>
void for_each_tensor(T& value, const Fn& fn) {
  Inside<T>::visit(value, fn);
}

// How an argument is kept between its two lives: a DTensor, whose layout the
// input function may take away, as a tensor.
template <typename T>
using Kept = std::conditional_t<
    std::derived_from<std::remove_cvref_t<T>, at::Tensor>,
    at::Tensor,
    std::decay_t<T>>;

// Puts what `fn` makes of the tensors in `value` in their places.
template <typename T>
void apply_module_fn(
    const ModuleFn& fn,
    const char* role,
    torch::nn::Module& module,
    T& value,
    const DeviceMesh& mesh) {
  ModuleFn::Tensors tensors;
  for_each_tensor(value, [&](at::Tensor& t) { tensors.push_back(t); });
  tensors = fn(role, module, std::move(tensors), mesh);
  size_t next = 0;
  for_each_tensor(
      value, [&](at::Tensor& t) { t = std::move(tensors[next++]); });
}

}  // namespace detail

template <typename F>
  requires(!std::same_as<std::remove_cvref_t<F>, ModuleFn>)
ModuleFn::ModuleFn(F&& fn) {
  using Fn = std::decay_t<F>;
  constexpr bool kCurrent =
      std::is_invocable_v<Fn&, torch::nn::Module&, Tensors, const DeviceMesh&>;
  constexpr bool kOlder = std::is_invocable_v<Fn&, Tensors, const DeviceMesh&>;
  static_assert(
      kCurrent || kOlder,
      "an input or output function takes (torch::nn::Module&, "
      "std::vector<at::Tensor>, const tessera::DeviceMesh&)");
  const auto listed = [](auto&& result) -> Tensors {
    if constexpr (std::convertible_to<decltype(result), at::Tensor>) {
      return {at::Tensor(std::forward<decltype(result)>(result))};
    } else {
      return Tensors(std::forward<decltype(result)>(result));
    }
  };
  deprecated_ = !kCurrent;
  function_ = [fn = Fn(std::forward<F>(fn)), listed](
                  [[maybe_unused]] torch::nn::Module& module,
                  Tensors tensors,
                  const DeviceMesh& mesh) mutable {
    if constexpr (kCurrent) {
      return listed(fn(module, std::move(tensors), mesh));
    } else {
      return listed(fn(std::move(tensors), mesh));
    }
  };
}

template <typename Module>
template <typename... Args>
auto DistributedModule<Module>::operator()(Args&&... args) const {
  const auto forward = [this](auto&&... given) {
    using Result =
        decltype(module_->forward(std::forward<decltype(given)>(given)...));
    if constexpr (std::is_void_v<Result>) {
      module_->forward(std::forward<decltype(given)>(given)...);
    } else {
      return arrange_output<std::decay_t<Result>>(
          module_->forward(std::forward<decltype(given)>(given)...));
    }
  };
  using Result = decltype(forward(std::forward<Args>(args)...));
  if (!input_fn_) {
    return static_cast<Result>(forward(std::forward<Args>(args)...));
  }
  std::tuple<detail::Kept<Args>...> kept(std::forward<Args>(args)...);
  detail::apply_module_fn(input_fn_, "input_fn", *module_, kept, mesh_);
  return static_cast<Result>(std::apply(forward, std::move(kept)));
}

template <typename Module>
template <typename Result>
Result DistributedModule<Module>::arrange_output(Result result) const {
  if (output_fn_) {
    detail::apply_module_fn(output_fn_, "output_fn", *module_, result, mesh_);
  }
  return result;
}

template <typename Module>
DistributedModule<Module> distribute_module(
    std::shared_ptr<Module> module,
    const DeviceMesh& mesh,
    const PartitionFn& partition_fn,
    ModuleFn input_fn,
    ModuleFn output_fn) {
  TORCH_CHECK_VALUE(
      module != nullptr, "[distribute_module] expected a module, got nullptr");
  detail::prepare_module(*module, mesh, partition_fn, input_fn, output_fn);
  return {std::move(module), mesh, std::move(input_fn), std::move(output_fn)};
}

template <typename Module>
DistributedModule<Module> distribute_module(
    const torch::nn::ModuleHolder<Module>& module,
    const DeviceMesh& mesh,
    const PartitionFn& partition_fn,
    ModuleFn input_fn,
    ModuleFn output_fn) {
  return distribute_module(
      module.ptr(),
      mesh,
      partition_fn,
      std::move(input_fn),
      std::move(output_fn));
}

template <std::derived_from<torch::nn::Module> Module>
DistributedModule<Module> distribute_module(
    Module& module,
    const DeviceMesh& mesh,
    const PartitionFn& partition_fn,
    ModuleFn input_fn,
    ModuleFn output_fn) {
  // A pointer that owns nothing.
  return distribute_module(
      std::shared_ptr<Module>(std::shared_ptr<void>(), &module),
      mesh,
      partition_fn,
      std::move(input_fn),
      std::move(output_fn));
}

}  // namespace tessera
