// Ops that write a list of results into tensors that are given, `out=`: the op
// that makes them, and a copy of each.
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <memory>
#include <string>

#include "dispatch/run_by_rule.h"
#include "ops/all_ops.h"

namespace tessera::detail {

namespace {

class ListOutKernel final : public c10::OperatorKernel {
 public:
  ListOutKernel(const OpInfo& makes, std::string name)
      : makes_(makes), name_(std::move(name)) {}

  void operator()(
      const c10::OperatorHandle&,
      c10::DispatchKeySet,
      torch::jit::Stack* stack) {
    // The last argument of the op that writes.
    const auto outs = torch::jit::pop(*stack).toTensorVector();
    makes_.handle.callBoxed(stack);
    const auto results = torch::jit::pop(*stack).toTensorVector();
    TORCH_CHECK(
        outs.size() == results.size(),
        name_,
        "() expected an out= argument of size ",
        results.size(),
        ", got size ",
        outs.size());
    for (size_t i = 0; i < outs.size(); ++i) {
      TORCH_CHECK(
          outs[i].sizes() == results[i].sizes(),
          "[",
          name_,
          "] writes a result of shape ",
          results[i].sizes(),
          " into a tensor of shape ",
          outs[i].sizes(),
          ", which cannot be resized");
      TORCH_CHECK(
          outs[i].scalar_type() == results[i].scalar_type(),
          "Expected out tensor to have dtype ",
          results[i].dtype(),
          ", but got ",
          outs[i].dtype(),
          " instead");
    }
    for (size_t i = 0; i < outs.size(); ++i) {
      outs[i].copy_(results[i]);
    }
  }

 private:
  const OpInfo& makes_;
  const std::string name_;
};

}  // namespace

void register_list_outs(OpRegistry& ops) {
  const auto add =
      [&](const char* out, const char* name, const char* overload) {
        ops.composed(
            out,
            torch::CppFunction::makeFromBoxedFunctor(
                std::make_unique<ListOutKernel>(
                    aten_op(name, overload), std::string(name) + "_out")));
      };
  add("split_copy.Tensor_out", "split_copy", "Tensor");
  add("split_with_sizes_copy.out", "split_with_sizes_copy", "");
  add("unbind_copy.int_out", "unbind_copy", "int");
  add("unsafe_split.Tensor_out", "unsafe_split", "Tensor");
  add("unsafe_split_with_sizes.out", "unsafe_split_with_sizes", "");
}

}  // namespace tessera::detail
