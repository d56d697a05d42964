#include "dispatch/learn_dtypes.h"

#include <ATen/ops/zeros.h>

namespace tessera::detail {

namespace {

// 64 MiB of doubles: more would be noticed.
constexpr int64_t kMostElements = int64_t{1} << 23;

// The results that are not written arguments, lists laid out flat.
std::vector<at::Tensor> fresh_results(
    const OpInfo& op, const torch::jit::Stack& stack) {
  std::vector<at::Tensor> results;
  for (size_t r = 0; r < op.returns.size(); ++r) {
    const auto& info = op.returns[r];
    if (info.kind == ReturnInfo::Kind::NotATensor ||
        info.kind == ReturnInfo::Kind::Written) {
      continue;
    }
    if (!info.is_list) {
      results.push_back(stack[r].toTensor());
      continue;
    }
    for (const auto& element : stack[r].toListRef()) {
      results.push_back(element.toTensor());
    }
  }
  return results;
}

}  // namespace

void learn_dtypes(
    const OpInfo& op, OpPlan& plan, c10::ArrayRef<c10::IValue> args) {
  int64_t elements = 0;
  std::vector<at::Tensor> zeros;
  for (const auto& spec : plan.inputs) {
    elements += spec == nullptr ? 0 : spec->numel();
  }
  if (elements > kMostElements) {
    return;
  }
  for (const auto& spec : plan.inputs) {
    zeros.push_back(
        spec == nullptr
            ? at::Tensor()
            : at::zeros(spec->sizes, at::TensorOptions().dtype(spec->dtype)));
  }
  torch::jit::Stack stack(args.begin(), args.end());
  put_tensors(stack, plan.slots, zeros);
  op.handle.callBoxed(&stack);
  const auto results = fresh_results(op, stack);
  for (size_t i = 0; i < plan.outputs.size() && i < results.size(); ++i) {
    auto& spec = plan.outputs[i];
    if (!results[i].defined()) {
      spec = nullptr;
    } else if (spec != nullptr) {
      spec = Spec::make(
          spec->mesh,
          spec->placements,
          spec->sizes,
          spec->strides,
          results[i].scalar_type());
    }
  }
}

}  // namespace tessera::detail
