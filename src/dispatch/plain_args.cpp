#include "dispatch/plain_args.h"
#include "tessera/language.h"

#include <ATen/ops/alias.h>
#include <torch/csrc/autograd/function.h>

#include "dispatch/autograd.h"
#include "dispatch/formula.h"

namespace tessera::detail {

namespace {

thread_local int implicit_scopes = 0;

// A tensor of one element is taken as the same on all ranks, as numbers are,
// unless it is to get a gradient: that would be a distributed one.
bool is_number(const at::Tensor& tensor) {
  return tensor.dim() == 0 ||
         (tensor.numel() == 1 &&
          !(tensor.requires_grad() && at::GradMode::is_enabled()));
}

const DeviceMesh* first_mesh(const CallTensors& call) {
  for (const auto& tensor : call.tensors) {
    if (is_dtensor(tensor)) {
      return &distributed_meta(tensor).spec->mesh;
    }
  }
  return nullptr;
}

// A tensor that formulas made of the global shape and now write into: each rank
// goes on with memory of its own, the first with the tensor's, so that plain
// views of it which are still about see what is written.
void replicate_base(const at::Tensor& base, const DeviceMesh& mesh) {
  const bool dense = base.is_non_overlapping_and_dense();
  Shards shards;
  for (size_t i = 0; i < mesh.local_positions().size(); ++i) {
    shards.push_back(i == 0 && dense ? at::alias(base) : base.clone());
  }
  become(
      base, make_distributed(replicated_spec(mesh, base), std::move(shards)));
}

// The same for a tensor that may be a view: then its base is what each rank
// goes on with, or the write would be lost there.
void replicate_in_place(const at::Tensor& plain, const DeviceMesh& mesh) {
  if (!plain.is_view()) {
    return replicate_base(plain, mesh);
  }
  const at::Tensor base(plain._base());
  if (!is_dtensor(base)) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        base.is_non_overlapping_and_dense(),
        "a view of a plain tensor whose elements do not fill its memory cannot "
        "be written with distributed ones");
    replicate_base(base, mesh);
  }
  const auto& shards = current_shards(base);
  Shards parts;
  for (const auto& shard : shards) {
    const int64_t offset = plain.storage_offset() - shards[0].storage_offset() +
                           shard.storage_offset();
    parts.push_back(shard.as_strided(plain.sizes(), plain.strides(), offset));
  }
  become(
      plain, make_distributed(replicated_spec(mesh, plain), std::move(parts)));
}

}  // namespace

void enter_implicit_replication() { ++implicit_scopes; }
void leave_implicit_replication() { --implicit_scopes; }

void admit_plain_tensors(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  const auto call = call_tensors(op, args);
  const DeviceMesh* mesh = first_mesh(call);
  // Derivative formulas make plain tensors of the global shape, every rank the
  // same ones. What users mix in a backward pass may differ from rank to rank.
  const bool admitted = implicit_scopes > 0 || in_derivative_formula();
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& tensor = call.tensors[i];
    const size_t argument = call.slots[i].argument;
    const bool written = op.written_args[argument];
    if (!tensor.defined() || is_dtensor(tensor) ||
        (!written && is_number(tensor))) {
      continue;
    }
    TORCH_CHECK(
        admitted && mesh != nullptr,
        "[",
        op.display_name,
        "] argument '",
        op.handle.schema().arguments()[argument].name(),
        "' is a plain tensor of shape ",
        tensor.sizes(),
        " but others are distributed (got mixed torch.Tensor and DTensor). ",
        spell(
            "Convert it with distribute_tensor(tensor, mesh, placements) or "
            "DTensor::from_local, or hold an ImplicitReplication guard to take "
            "plain tensors as replicated"));
    if (written) {
      replicate_in_place(tensor, *mesh);
    }
  }
}

SpecPtr replicated_spec(const DeviceMesh& mesh, const at::Tensor& plain) {
  const Placements placements(mesh.ndim(), Replicate());
  return Spec::make(
      mesh, placements, plain.sizes(), plain.strides(), plain.scalar_type());
}

Shards replicated_shards(const DeviceMesh& mesh, const at::Tensor& plain) {
  return Shards(mesh.local_positions().size(), plain);
}

at::Tensor replicated(const DeviceMesh& mesh, const at::Tensor& plain) {
  const Placements placements(mesh.ndim(), Replicate());
  return from_shards(
      Spec::make(mesh, placements, plain.sizes(), plain.scalar_type()),
      {plain.contiguous()},
      /*shared=*/true);
}

}  // namespace tessera::detail
