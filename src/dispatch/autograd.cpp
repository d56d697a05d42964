#include "dispatch/autograd.h"

#include "comm/comm_event.h"
#include "core/terms.h"
#include "dispatch/boundary_node.h"
#include "dispatch/implicit_moves.h"
#include "dispatch/plain_args.h"
#include "dispatch/run_steps.h"
#include "dispatch/tangents.h"
#include "plan/redistribute_plan.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

using torch::autograd::variable_list;

// Below autograd.
at::Tensor move_to(const at::Tensor& tensor, PlacementsRef to, Slices slices) {
  const auto& meta = distributed_meta(tensor);
  const auto plan = cached_redistribution(*meta.spec, to);
  const auto strides = strides_after(
      meta.spec->mesh, meta.spec->sizes, meta.spec->strides, *plan, slices);
  return make_distributed(
      Spec::make(
          meta.spec->mesh,
          to,
          meta.spec->sizes,
          strides,
          meta.spec->dtype,
          shard_dtype_in(*meta.spec, to)),
      run_steps(*meta.spec, *plan, current_shards(tensor), slices));
}

class Redistribute final : public torch::autograd::Node {
 public:
  explicit Redistribute(const SpecPtr& from)
      : mesh_(from->mesh), grad_(grad_placements_of(from->placements)) {}

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) {
      return {at::Tensor()};
    }
    return {grad_in_layout(grads[0], mesh_, grad_)};
  }

  std::string name() const override { return "RedistributeBackward"; }

 private:
  const DeviceMesh mesh_;
  const Placements grad_;
};

}  // namespace

at::Tensor grad_in_layout(
    const at::Tensor& grad, const DeviceMesh& mesh, PlacementsRef placements) {
  if (is_dtensor(grad)) {
    const auto& its_mesh = distributed_meta(grad).spec->mesh;
    TORCH_CHECK_VALUE(
        its_mesh == mesh,
        "[backward] a gradient lives on ",
        its_mesh.str(),
        " but its tensor on ",
        mesh.str(),
        ": take full_tensor() of the gradient and distribute that on the "
        "tensor's mesh");
    return redistribute(grad, placements);
  }
  if (records(grad)) {
    return redistribute(replicated(mesh, grad), placements);
  }
  auto spec = Spec::make(mesh, placements, grad.sizes(), grad.scalar_type());
  Shards shards;
  for (const int64_t position : mesh.local_positions()) {
    shards.push_back(cut_shard(grad, mesh, placements, position)
                         .clone(at::MemoryFormat::Contiguous));
  }
  return make_distributed(std::move(spec), std::move(shards));
}

Placements grad_placements_of(PlacementsRef placements) {
  Placements result(placements.begin(), placements.end());
  for (auto& placement : result) {
    if (placement.is_partial()) {
      placement = Replicate();
    }
  }
  return result;
}

at::Tensor redistribute(
    const at::Tensor& tensor, PlacementsRef to, std::string_view cause) {
  if (PlacementsRef(distributed_meta(tensor).spec->placements) == to) {
    return tensor;
  }
  if (cause != kAskedFor) {
    check_implicit_move(
        cause, "a tensor of its own", *distributed_meta(tensor).spec, to);
  }
  const CommCauseGuard guard(cause, distributed_meta(tensor).spec);
  auto moved = move_to(tensor, to, Slices::Copy);
  if (records(tensor)) {
    record(
        make_node<Redistribute>(distributed_meta(tensor).spec), tensor, moved);
  }
  set_tangent(moved, tangent_of(tensor));
  return moved;
}

at::Tensor with_grad_in_layout(const at::Tensor& tensor) {
  const auto& spec = distributed_meta(tensor).spec;
  const auto& shards = current_shards(tensor);
  auto same = make_distributed(spec, shards, view_origin(tensor));
  record(make_node<Redistribute>(spec), tensor, same);
  set_tangent(same, tangent_of(tensor));
  return same;
}

// Formulas are the same for every backend.
c10::SafeKernelFunction aten_formula(const c10::OperatorHandle& op) {
  return op.getComputedKernelForDispatchKey(c10::DispatchKey::AutogradCPU);
}

}  // namespace tessera::detail
