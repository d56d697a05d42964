// Ops on distributed tensors that are made of other ops, because no row can say
// them: a mean divides by the number of elements of the whole tensor, not of a
// shard. They run below autograd and call ATen's ops again, which come to our
// kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <utility>

#include "dispatch/kernel.h"

namespace tessera::detail {

// Registers all of them for the distributed key of `aten`.
void register_decompositions(torch::Library& aten);

// The parts, each in the file of its name.
void register_moments(torch::Library& aten);  // decompose_moments.cpp
void register_norms(torch::Library& aten);    // decompose_norms.cpp
void register_losses(torch::Library& aten);   // decompose_losses.cpp
void register_nonzero(torch::Library& aten);  // decompose_nonzero.cpp
void register_index(torch::Library& aten);    // decompose_index.cpp
// decompose_fused_optimizers.cpp
void register_fused_optimizers(torch::Library& aten);

// The op aten::`name`, for run_by_rule.
const OpInfo& aten_op(const char* name, const char* overload = "");

// Runs an op by its rule, past its decomposition, and leaves its results in the
// stack that is returned.
template <typename... Args>
torch::jit::Stack run_by_rule(const OpInfo& op, Args&&... args) {
  torch::jit::Stack stack;
  torch::jit::push(stack, std::forward<Args>(args)...);
  run_op(op, &stack);
  return stack;
}

// `dims` made non-negative; all dimensions where there are none. Throws
// c10::IndexError for one out of range.
c10::SmallVector<int64_t, 5> reduced_dims(
    const at::Tensor& self, at::OptionalIntArrayRef dims);

// How many elements of the whole tensor go into one of the result.
int64_t reduced_count(const at::Tensor& self, at::IntArrayRef dims);

// The dtype in which sums of `dtype` are accumulated: float for half types.
at::ScalarType accumulate_dtype(at::ScalarType dtype);

}  // namespace tessera::detail
