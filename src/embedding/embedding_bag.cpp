// aten::_embedding_bag on distributed tensors: what may be asked for.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "dispatch/autograd.h"
#include "dispatch/op_plan.h"
#include "dispatch/plain_args.h"
#include "dispatch/run_by_rule.h"
#include "dispatch/tensor.h"
#include "embedding/embedding.h"
#include "embedding/pool_bags.h"

namespace tessera::detail {

namespace {

const OpInfo& bag_op() {
  static const OpInfo& op = aten_op("_embedding_bag");
  return op;
}

// Indices and offsets of different types are brought to one, as ATen does.
at::Tensor promoted(const at::Tensor& tensor, const at::Tensor& other) {
  const auto dtype =
      c10::promoteTypes(tensor.scalar_type(), other.scalar_type());
  return tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
}

// aten::_embedding_bag. Of its results only the first is used: the others serve
// ATen's own backward.
struct AtenBag {
  using Result = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
  struct Args {
    at::Tensor weight;
    at::Tensor indices;
    at::Tensor offsets;
    bool scale_grad_by_freq = false;
    int64_t mode = 0;
    bool sparse = false;
    std::optional<at::Tensor> per_sample_weights;
    bool include_last_offset = false;
    int64_t padding_idx = -1;
  };
};
using AtenBagFunctions = OpFunctions<AtenBag>;

// Plain offsets must be equal on every rank: libtorch itself makes them for
// inputs of two dimensions. Other plain tensors are refused as anywhere.
void check_plain(AtenBag::Args args) {
  const auto& weights = args.per_sample_weights;
  if (is_dtensor(args.weight) && is_dtensor(args.indices) &&
      (!weights.has_value() || is_dtensor(*weights))) {
    return;
  }
  if (!is_dtensor(args.offsets)) {
    args.offsets = at::Tensor();
  }
  admit_plain_tensors(bag_op(), AtenBagFunctions::stack(args));
}

// The call with all its tensors distributed.
BagCall checked_call(AtenBag::Args args) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !args.scale_grad_by_freq,
      "[embedding_bag] scale_grad_by_freq is not supported for distributed "
      "tables");
  TORCH_CHECK_VALUE(
      args.mode >= 0 && args.mode <= 2,
      "[embedding_bag] expected mode 0 (sum), 1 (mean) or 2 (max), but got ",
      args.mode);
  TORCH_CHECK_VALUE(
      args.indices.dim() == 1 && args.offsets.dim() == 1,
      "[embedding_bag] expected indices and offsets of one dimension, but got ",
      args.indices.sizes(),
      " and ",
      args.offsets.sizes());
  args.indices = promoted(args.indices, args.offsets);
  args.offsets = promoted(args.offsets, args.indices);
  auto& weights = args.per_sample_weights;
  if (weights.has_value() && !weights->defined()) {
    weights = std::nullopt;
  }
  check_plain(args);
  const DeviceMesh mesh = common_mesh(
      "embedding_bag",
      {args.weight,
       args.indices,
       args.offsets,
       weights.value_or(at::Tensor())});
  const auto distributed = [&](const at::Tensor& tensor) {
    return is_dtensor(tensor) ? tensor : replicated(mesh, tensor);
  };
  const Placements whole(mesh.ndim(), Replicate());
  if (weights.has_value()) {
    weights = distributed(*weights);
  }
  return {
      {distributed(args.weight),
       {distributed(args.indices),
        redistribute(distributed(args.offsets), whole, kBagCause),
        weights},
       {static_cast<BagMode>(args.mode),
        args.include_last_offset,
        args.padding_idx,
        /*whole_bags=*/false,
        args.sparse},
       {}},
      !is_dtensor(args.offsets)};
}

AtenBag::Result embedding_bag(const AtenBag::Args& args) {
  auto pooled = pool_bags(checked_call(args));
  const auto none = replicated(
      distributed_meta(pooled).spec->mesh,
      at::empty({0}, at::TensorOptions(at::kLong)));
  return {std::move(pooled), none, none, none};
}

std::string explain_embedding_bag(c10::ArrayRef<c10::IValue> args) {
  return explain_bags(checked_call(AtenBagFunctions::args(args)));
}

}  // namespace

void register_embedding_bag(OpRegistry& ops) {
  const auto kernel = &AtenBagFunctions::unpacked<&embedding_bag>;
  for (const char* op : {"_embedding_bag", "_embedding_bag_forward_only"}) {
    ops.own_kernel(op, kernel);
    ops.above_autograd(op, kernel);
    ops.explained_by(op, &explain_embedding_bag);
  }
}

}  // namespace tessera::detail
