// aten::_embedding_bag on distributed tensors: what may be asked for.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "dispatch/autograd.h"
#include "dispatch/op_plan.h"
#include "dispatch/plain_args.h"
#include "dispatch/run_by_rule.h"
#include "dispatch/tensor.h"
#include "embedding/bag_max.h"
#include "embedding/bag_strategy.h"
#include "embedding/embedding.h"

namespace tessera::detail {

namespace {

using OptionalTensor = std::optional<at::Tensor>;

const OpInfo& bag_op() {
  static const OpInfo& op = aten_op("_embedding_bag");
  return op;
}

Placements replicated_on(const DeviceMesh& mesh) {
  return Placements(mesh.ndim(), Replicate());
}

// A plain tensor as one that every rank has.
at::Tensor replicated(const at::Tensor& tensor, const DeviceMesh& mesh) {
  if (is_dtensor(tensor)) {
    return redistribute(tensor, replicated_on(mesh), kBagCause);
  }
  auto spec = Spec::make(
      mesh, replicated_on(mesh), tensor.sizes(), tensor.scalar_type());
  return from_shards(std::move(spec), {tensor.contiguous()}, /*shared=*/true);
}

// Plain offsets must be equal on every rank: libtorch itself makes them for
// inputs of two dimensions. Other plain tensors are refused as anywhere.
void check_plain(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    const OptionalTensor& per_sample_weights) {
  if (is_dtensor(weight) && is_dtensor(indices) &&
      (!per_sample_weights.has_value() || is_dtensor(*per_sample_weights))) {
    return;
  }
  torch::jit::Stack args;
  torch::jit::push(
      args,
      weight,
      indices,
      is_dtensor(offsets) ? offsets : at::Tensor(),
      false,
      0,
      false,
      per_sample_weights,
      false,
      -1);
  admit_plain_tensors(bag_op(), args);
}

// The call with all its tensors distributed.
BagCall checked_call(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    bool scale_grad_by_freq,
    int64_t mode,
    bool sparse,
    const OptionalTensor& given_weights,
    bool include_last_offset,
    int64_t padding_idx) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !scale_grad_by_freq,
      "[embedding_bag] scale_grad_by_freq is not supported for distributed "
      "tables");
  TORCH_CHECK_VALUE(
      mode >= 0 && mode <= 2,
      "[embedding_bag] expected mode 0 (sum), 1 (mean) or 2 (max), but got ",
      mode);
  TORCH_CHECK_VALUE(
      indices.dim() == 1 && offsets.dim() == 1,
      "[embedding_bag] expected indices and offsets of one dimension, but got ",
      indices.sizes(),
      " and ",
      offsets.sizes());
  auto per_sample_weights = given_weights;
  if (per_sample_weights.has_value() && !per_sample_weights->defined()) {
    per_sample_weights = std::nullopt;
  }
  check_plain(weight, indices, offsets, per_sample_weights);
  const DeviceMesh mesh = common_mesh(
      "embedding_bag",
      {weight, indices, offsets, per_sample_weights.value_or(at::Tensor())});
  const auto distributed = [&](const at::Tensor& tensor) {
    return is_dtensor(tensor) ? tensor : replicated(tensor, mesh);
  };
  if (per_sample_weights.has_value()) {
    per_sample_weights = distributed(*per_sample_weights);
  }
  return {
      distributed(weight),
      distributed(indices),
      replicated(offsets, mesh),
      std::move(per_sample_weights),
      {static_cast<BagMode>(mode),
       include_last_offset,
       padding_idx,
       /*whole_bags=*/false,
       sparse},
      !is_dtensor(offsets)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> embedding_bag(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    bool scale_grad_by_freq,
    int64_t mode,
    bool sparse,
    const OptionalTensor& per_sample_weights,
    bool include_last_offset,
    int64_t padding_idx) {
  auto pooled = pool_bags(checked_call(
      weight,
      indices,
      offsets,
      scale_grad_by_freq,
      mode,
      sparse,
      per_sample_weights,
      include_last_offset,
      padding_idx));
  // The other results serve ATen's own backward, which is not used here.
  const auto none = replicated(
      at::empty({0}, at::TensorOptions(at::kLong)),
      distributed_meta(pooled).spec->mesh);
  return {std::move(pooled), none, none, none};
}

}  // namespace

std::string explain_embedding_bag(c10::ArrayRef<c10::IValue> args) {
  return explain_strategies(checked_call(
      args[0].toTensor(),
      args[1].toTensor(),
      args[2].toTensor(),
      args[3].toBool(),
      args[4].toInt(),
      args[5].toBool(),
      args[6].toOptional<at::Tensor>(),
      args[7].toBool(),
      args[8].toInt()));
}

void register_embedding_bag(OpRegistry& ops) {
  for (const char* op : {"_embedding_bag", "_embedding_bag_forward_only"}) {
    ops.own_kernel(op, &embedding_bag);
    ops.above_autograd(op, &embedding_bag);
    ops.explained_by(op, &explain_embedding_bag);
  }
}

}  // namespace tessera::detail
