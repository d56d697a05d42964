#include "dispatch/autograd.h"

#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include <unordered_set>

#include "comm/comm_event.h"
#include "dispatch/boundary_node.h"
#include "dispatch/implicit_moves.h"
#include "dispatch/plain_args.h"
#include "dispatch/run_steps.h"
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
          meta.spec->mesh, to, meta.spec->sizes, strides, meta.spec->dtype),
      run_steps(
          meta.spec->mesh,
          meta.spec->sizes,
          *plan,
          current_shards(tensor),
          slices));
}

// Positions whose gradient counts for a tensor that all ranks share: the first
// of each set of replicas.
bool counts_for_shared(const Spec& spec, int64_t position) {
  for (int64_t m = 0; m < spec.mesh.ndim(); ++m) {
    if (spec.placements[m].is_replicate() &&
        spec.mesh.coordinate(position, m) != 0) {
      return false;
    }
  }
  return true;
}

// The caller's memory, with sizes, strides and autograd state of its own: what
// the caller does to the tensor itself must not change a shard.
at::Tensor taken_shard(const at::Tensor& local) {
  auto* impl = local.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(
      impl->version_counter(), /*allow_tensor_metadata_change=*/true));
}

// The shards of one tensor for all ranks, or of a tensor a rank. In a simulated
// world no two of them may share memory: what is written into one rank's shard
// would be seen, and written again, by another. The first keeps the caller's.
Shards separate_shards(const Spec& spec, at::TensorList locals, bool shared) {
  const size_t count =
      shared ? spec.mesh.local_positions().size() : locals.size();
  Shards shards;
  if (count == 1) {
    shards.push_back(taken_shard(locals[0]));
    return shards;
  }
  std::unordered_set<const c10::StorageImpl*> seen;
  for (size_t i = 0; i < count; ++i) {
    const auto& local = locals[shared ? 0 : i];
    shards.push_back(taken_shard(local));
    if (local.has_storage() &&
        !seen.insert(local.storage().unsafeGetStorageImpl()).second) {
      shards[i] = shards[i].clone();
    }
  }
  return shards;
}

// A write into the caller's tensor is one into the distributed tensor, which
// shares its memory. There is one count a tensor: of several shards none is it.
void count_writes_of(at::TensorList locals, const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  if (locals.size() == 1 && !impl->is_inference()) {
    const auto& version = locals[0].unsafeGetTensorImpl()->version_counter();
    if (version.enabled()) {
      impl->set_version_counter(version);
    }
  }
}

// What happened at the boundary, for the backward pass.
class BoundaryNode : public torch::autograd::Node {
 public:
  // `grad` is how the gradient lies on the distributed side, whose tensor lies
  // as `spec`.
  BoundaryNode(SpecPtr spec, Placements grad)
      : spec_(std::move(spec)), grad_(std::move(grad)) {}

 protected:
  SpecPtr spec_;
  Placements grad_;
};

// By how much the gradient of an average is more than that of each term.
int64_t averaged_over(const Spec& spec, int64_t mesh_dim) {
  const auto& placement = spec.placements[mesh_dim];
  const bool averages =
      placement.is_partial() && placement.reduce_op() == ReduceOp::Avg;
  return averages ? spec.mesh.size(mesh_dim) : 1;
}

class FromShards final : public BoundaryNode {
 public:
  FromShards(const SpecPtr& spec, bool shared)
      : BoundaryNode(spec, grad_placements_of(spec->placements)),
        shared_(shared) {}

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) {
      return variable_list(num_outputs());
    }
    const auto grad = grad_in_layout(grads[0], spec_->mesh, grad_);
    auto shards = to_shards(grad, grad_);
    int64_t terms = 1;
    for (int64_t m = 0; m < spec_->mesh.ndim(); ++m) {
      terms *= averaged_over(*spec_, m);
    }
    for (size_t i = 0; i < shards.size() && terms > 1; ++i) {
      shards[i] = at::div(shards[i], terms);
    }
    if (!shared_) {
      return shards;
    }
    at::Tensor sum;
    for (size_t i = 0; i < shards.size(); ++i) {
      if (counts_for_shared(*spec_, spec_->mesh.local_positions()[i])) {
        sum = sum.defined() ? at::add(sum, shards[i]) : shards[i];
      }
    }
    return {sum};
  }

  std::string name() const override { return "FromShardsBackward"; }

 private:
  bool shared_;
};

class ToShards final : public BoundaryNode {
 public:
  using BoundaryNode::BoundaryNode;

  variable_list apply(variable_list&& grads) override {
    const auto& mesh = spec_->mesh;
    // The way back of FromShards. A gradient that is pending itself is the sum
    // of its terms already.
    int64_t terms = 1;
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      terms *= grad_[m].is_partial() ? 1 : averaged_over(*spec_, m);
    }
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) {
        grads[i] = at::zeros(
            local_shape(spec_->sizes, mesh, grad_, mesh.local_positions()[i]),
            at::TensorOptions(input_metadata(i).options()));
      }
      // An expanded gradient, or a transposed one: the layout promises memory
      // of its own, in its order.
      grads[i] = with_strides_of(*spec_, std::move(grads[i]));
      if (terms > 1) {
        grads[i] = at::mul(grads[i], terms);
      }
    }
    return {from_shards(spec_->with(grad_), grads, false)};
  }

  std::string name() const override { return "ToShardsBackward"; }
};

class ToWhole final : public BoundaryNode {
 public:
  using BoundaryNode::BoundaryNode;

  // Every rank that lives here goes on with the same value, and so gets the
  // same gradient, in memory of its own.
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) {
      return {at::Tensor()};
    }
    variable_list shards;
    const auto grad = with_strides_of(*spec_, std::move(grads[0]));
    for (size_t i = 0; i < spec_->mesh.local_positions().size(); ++i) {
      shards.push_back(i == 0 ? grad : grad.clone());
    }
    return {from_shards(spec_->with(grad_), shards, false)};
  }

  std::string name() const override { return "ToWholeBackward"; }
};

class Redistribute final : public BoundaryNode {
 public:
  explicit Redistribute(const SpecPtr& from)
      : BoundaryNode(from, grad_placements_of(from->placements)) {}

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) {
      return {at::Tensor()};
    }
    return {grad_in_layout(grads[0], spec_->mesh, grad_)};
  }

  std::string name() const override { return "RedistributeBackward"; }
};

// Records, where it is wanted, that `local` was taken from `tensor`.
template <class Node, class Local>
void record_local(
    const at::Tensor& tensor, PlacementsRef grad_placements, Local& local) {
  if (records(tensor)) {
    record(
        make_node<Node>(
            distributed_meta(tensor).spec,
            Placements(grad_placements.begin(), grad_placements.end())),
        tensor,
        local);
  }
}

}  // namespace

at::Tensor grad_in_layout(
    const at::Tensor& grad, const DeviceMesh& mesh, PlacementsRef placements) {
  if (is_dtensor(grad)) {
    return redistribute(grad, placements);
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

at::Tensor from_shards(
    const SpecPtr& spec, at::TensorList shards, bool shared) {
  auto tensor = make_distributed(spec, separate_shards(*spec, shards, shared));
  count_writes_of(shards, tensor);
  if (records(shards)) {
    record(make_node<FromShards>(spec, shared), shards, tensor);
  }
  return tensor;
}

std::vector<at::Tensor> to_shards(
    const at::Tensor& tensor, PlacementsRef grad_placements) {
  std::vector<at::Tensor> locals;
  for (const auto& shard : current_shards(tensor)) {
    locals.push_back(shard_alias(shard, tensor));
  }
  record_local<ToShards>(tensor, grad_placements, locals);
  return locals;
}

at::Tensor to_whole(
    const at::Tensor& replicated, PlacementsRef grad_placements) {
  auto whole = shard_alias(current_shards(replicated)[0], replicated);
  record_local<ToWhole>(replicated, grad_placements, whole);
  return whole;
}

at::Tensor redistribute(
    const at::Tensor& tensor, PlacementsRef to, std::string_view cause) {
  if (PlacementsRef(distributed_meta(tensor).spec->placements) == to) {
    return tensor;
  }
  check_current(tensor);
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
  return moved;
}

at::Tensor with_grad_in_layout(const at::Tensor& tensor) {
  const auto& spec = distributed_meta(tensor).spec;
  auto same = make_distributed(spec, current_shards(tensor));
  record(make_node<Redistribute>(spec), tensor, same);
  return same;
}

// Formulas are the same for every backend.
c10::SafeKernelFunction aten_formula(const c10::OperatorHandle& op) {
  return op.getComputedKernelForDispatchKey(c10::DispatchKey::AutogradCPU);
}

}  // namespace tessera::detail
