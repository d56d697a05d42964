// ATen's own derivative formula of an op, for kernels in its place that leave
// some calls to it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <utility>

#include "dispatch/autograd.h"

namespace tessera::detail {

// `Op` is a struct of at::_ops. `keys` are those with which the kernel in the
// formula's place was called.
template <class Op, class... Args>
at::Tensor by_formula(c10::DispatchKeySet keys, const Args&... args) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      Op::name, Op::overload_name);
  static const auto formula = aten_formula(op);
  torch::jit::Stack stack;
  torch::jit::push(stack, args...);
  formula.callBoxed(op, keys, &stack);
  return std::move(stack[0]).toTensor();
}

}  // namespace tessera::detail
