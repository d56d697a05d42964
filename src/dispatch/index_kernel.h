// The kernel of ops of our own that read indices.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/library.h>

#include <string_view>

#include "dispatch/kernel.h"
#include "dispatch/tensor.h"

namespace tessera::detail {

// Whether ranks have indices of their own, one of which alone may be bad.
bool differs_over_ranks(const at::Tensor& indices);

// Runs `body`, and where ranks have indices of their own lets all of them know
// if one of them throws c10::IndexError: then every rank throws it. `body` may
// communicate before it reads indices, not after.
void run_agreed(
    const at::Tensor& indices,
    std::string_view cause,
    c10::function_ref<void()> body);

// The boxed kernel, agreed upon.
class IndexKernel final : public c10::OperatorKernel {
 public:
  // `indices`: which argument of the schema holds them.
  IndexKernel(const c10::OperatorHandle& op, size_t indices)
      : op_(op), indices_(indices) {}

  void operator()(
      const c10::OperatorHandle&,
      c10::DispatchKeySet,
      torch::jit::Stack* stack);

 private:
  OpInfo op_;
  size_t indices_;
};

// The kernels of the op called `name` for distributed tensors: of one that
// reads indices, and of one that is given what another has found well.
torch::CppFunction index_kernel(const char* name, size_t indices);
torch::CppFunction boxed_kernel(const char* name);

}  // namespace tessera::detail
