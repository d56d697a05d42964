#include "dispatch/learn_dtypes.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "core/terms.h"

namespace tessera::detail {

namespace {

// More elements than this are not made up only to see a dtype.
constexpr int64_t kMostElements = int64_t{1} << 16;

// Makes a tensor that stands in for an argument a wrapped number if that is
// one: `x + 1` promotes by the number's kind, not by its dtype.
void keep_wrapped_number(const at::Tensor& tensor, const at::Tensor& original) {
  if (original.unsafeGetTensorImpl()->is_wrapped_number()) {
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
}

// Tensors of the arguments' dtypes: of their shapes, if those are small,
// otherwise of one element each.
std::vector<at::Tensor> stand_ins(
    const OpPlan& plan, const CallTensors& tensors) {
  int64_t elements = 0;
  for (const auto& spec : plan.inputs) {
    elements += spec == nullptr ? 0 : spec->numel();
  }
  std::vector<at::Tensor> result(plan.inputs.size());
  for (size_t i = 0; i < result.size(); ++i) {
    const auto& spec = plan.inputs[i];
    if (spec == nullptr) {
      continue;
    }
    const Sizes shape =
        elements <= kMostElements ? spec->sizes : Sizes(spec->sizes.size(), 1);
    // Integers may be indices: 0 is always one.
    const at::TensorOptions options(spec->dtype);
    result[i] = c10::isIntegralType(spec->dtype, /*includeBool=*/true)
                    ? at::zeros(shape, options)
                    : at::ones(shape, options);
    keep_wrapped_number(result[i], tensors.tensors[i]);
  }
  return result;
}

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
    const OpInfo& op,
    OpPlan& plan,
    c10::ArrayRef<c10::IValue> args,
    const CallTensors& tensors) {
  torch::jit::Stack stack(args.begin(), args.end());
  // Held while the results are read: see from_meta_kernel in infer.cpp.
  const auto held = stand_ins(plan, tensors);
  put_tensors(stack, plan.slots, held);
  try {
    op.handle.callBoxed(&stack);
  } catch (const c10::Error&) {
    return;  // ranks with shards will say what is wrong, if anything is
  }
  const auto results = fresh_results(op, stack);
  for (size_t i = 0; i < plan.outputs.size() && i < results.size(); ++i) {
    auto& spec = plan.outputs[i];
    if (!results[i].defined()) {
      spec = nullptr;
    } else if (spec != nullptr && results[i].scalar_type() != spec->dtype) {
      const auto dtype = results[i].scalar_type();
      spec = Spec::make(
          spec->mesh,
          spec->placements,
          spec->sizes,
          spec->strides,
          dtype,
          spec->shard_dtype == spec->dtype ? dtype : accumulate_dtype(dtype));
    }
  }
}

}  // namespace tessera::detail
