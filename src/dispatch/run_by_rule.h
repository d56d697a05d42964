// Runs an op by its rule, for compositions of an op that call the op itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>
#include <tuple>
#include <utility>

#include "core/terms.h"
#include "dispatch/kernel.h"

namespace tessera::detail {

// The op aten::`name`, for run_by_rule.
const OpInfo& aten_op(const char* name, const char* overload = "");

// Runs an op by its rule, past its composition, and leaves its results in the
// stack that is returned.
template <typename... Args>
torch::jit::Stack run_by_rule(const OpInfo& op, Args&&... args) {
  torch::jit::Stack stack;
  torch::jit::push(stack, std::forward<Args>(args)...);
  run_op(op, &stack);
  return stack;
}

// The results as the tuple of tensors that the op's kernels return.
template <typename Tuple>
Tuple tensors_of(const torch::jit::Stack& results) {
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return Tuple{results[I].toTensor()...};
  }(std::make_index_sequence<std::tuple_size_v<Tuple>>());
}

// Whether an optional argument is there: what is left out may be undefined.
inline bool is_given(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && tensor->defined();
}

// Without pending reductions: what is used more than once is reduced once.
// Communicates, for the op `cause`. Requires: the tensor is distributed.
at::Tensor reduced_for(const at::Tensor& tensor, const char* cause);

}  // namespace tessera::detail
