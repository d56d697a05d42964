#include "dispatch/plain_args.h"
#include "tessera/language.h"

#include <torch/csrc/autograd/function.h>

namespace tessera::detail {

namespace {

thread_local int implicit_scopes = 0;

const DeviceMesh* first_mesh(const CallTensors& call) {
  for (const auto& tensor : call.tensors) {
    if (is_dtensor(tensor)) {
      return &distributed_meta(tensor).spec->mesh;
    }
  }
  return nullptr;
}

// A tensor that formulas made of the global shape and now write into: each rank
// goes on with a copy of its own.
void replicate_in_place(const at::Tensor& plain, const DeviceMesh& mesh) {
  Shards copies;
  for (size_t i = 0; i < mesh.local_positions().size(); ++i) {
    copies.push_back(plain.clone());
  }
  const Placements placements(mesh.ndim(), Replicate());
  become(
      plain,
      make_distributed(
          Spec::make(
              mesh,
              placements,
              plain.sizes(),
              plain.strides(),
              plain.scalar_type()),
          std::move(copies)));
}

}  // namespace

void enter_implicit_replication() { ++implicit_scopes; }
void leave_implicit_replication() { --implicit_scopes; }

void admit_plain_tensors(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  const auto call = call_tensors(op, args);
  const DeviceMesh* mesh = first_mesh(call);
  // Derivative formulas make plain tensors of the global shape; in a backward
  // pass every rank makes the same ones.
  const bool admitted =
      implicit_scopes > 0 || torch::autograd::get_current_node() != nullptr;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& tensor = call.tensors[i];
    const size_t argument = call.slots[i].argument;
    const bool written = op.written_args[argument];
    if (!tensor.defined() || is_dtensor(tensor) ||
        (tensor.dim() == 0 && !written)) {
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

Shards replicated_shards(const DeviceMesh& mesh, const at::Tensor& plain) {
  return Shards(mesh.local_positions().size(), plain);
}

}  // namespace tessera::detail
