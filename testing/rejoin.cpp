#include "testing/rejoin.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include "tessera/shard_math.h"
#include "testing/layouts.h"

namespace tessera::testing {

namespace {

at::Tensor reduced(const std::vector<at::Tensor>& terms, ReduceOp op) {
  at::Tensor total = terms[0];
  for (size_t i = 1; i < terms.size(); ++i) {
    switch (op) {
      case ReduceOp::Sum:
      case ReduceOp::Avg:
        total = total + terms[i];
        break;
      case ReduceOp::Product:
        total = total * terms[i];
        break;
      case ReduceOp::Min:
        total = at::minimum(total, terms[i]);
        break;
      case ReduceOp::Max:
        total = at::maximum(total, terms[i]);
        break;
    }
  }
  return op == ReduceOp::Avg ? total / static_cast<int64_t>(terms.size())
                             : total;
}

std::string shard_difference(
    const std::vector<at::Tensor>& parts,
    const at::Tensor& expected,
    const Placement& placement,
    const DeviceMesh& mesh) {
  for (size_t r = 0; r < parts.size(); ++r) {
    const auto shape =
        local_shape(expected.sizes(), mesh, placement, static_cast<int64_t>(r));
    if (parts[r].sizes() != SizesRef(shape)) {
      return "a shard has the wrong shape";
    }
  }
  return difference(at::cat(parts, placement.dim()), expected);
}

std::string part_difference(
    const std::vector<at::Tensor>& parts,
    const at::Tensor& expected,
    const Placement& placement,
    const DeviceMesh& mesh) {
  for (const auto& part : parts) {
    if (part.defined() != expected.defined()) {
      return "a shard is undefined";
    }
  }
  if (!expected.defined()) {
    return "";
  }
  if (placement.is_shard()) {
    return shard_difference(parts, expected, placement, mesh);
  }
  for (const auto& part : parts) {
    if (part.sizes() != expected.sizes()) {
      return "a shard has the wrong shape";
    }
    if (placement.is_replicate()) {
      const auto text = difference(part, expected);
      if (!text.empty()) {
        return text;
      }
    }
  }
  return placement.is_replicate()
             ? ""
             : difference(reduced(parts, placement.reduce_op()), expected);
}

}  // namespace

std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  if (value.isTensor()) {
    return {value.toTensor()};
  }
  if (value.isTensorList()) {
    return value.toTensorVector();
  }
  if (value.isOptionalTensorList()) {
    std::vector<at::Tensor> tensors;
    for (const auto& element : value.toOptionalTensorVector()) {
      tensors.push_back(element.value_or(at::Tensor()));
    }
    return tensors;
  }
  return {};
}

std::string rejoined_difference(
    const std::vector<torch::jit::Stack>& results,
    size_t index,
    const c10::IValue& expected,
    const Placement& placement,
    const DeviceMesh& mesh) {
  const auto whole = tensors_in(expected);
  std::vector<std::vector<at::Tensor>> parts;
  for (const auto& stack : results) {
    parts.push_back(tensors_in(stack[index]));
    if (parts.back().size() != whole.size()) {
      return "a rank gives another number of tensors";
    }
  }
  for (size_t e = 0; e < whole.size(); ++e) {
    std::vector<at::Tensor> of_element;
    for (const auto& list : parts) {
      of_element.push_back(list[e]);
    }
    const auto text = part_difference(of_element, whole[e], placement, mesh);
    if (!text.empty()) {
      return text;
    }
  }
  return "";
}

}  // namespace tessera::testing
