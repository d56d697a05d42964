#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include <unordered_set>

#include "dispatch/autograd.h"
#include "dispatch/boundary_node.h"
#include "dispatch/tangents.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

using torch::autograd::variable_list;

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
  if (impl->is_inference()) {
    return;
  }
  for (const auto& local : locals) {
    const auto& version = local.unsafeGetTensorImpl()->version_counter();
    if (version.enabled() && locals.size() == 1) {
      impl->set_version_counter(version);
      distributed_meta(tensor).shares_own_counter();
    } else if (version.enabled()) {
      distributed_meta(tensor).count_writes_of(version);
    }
  }
}

bool is_average(const Placement& placement) {
  return placement.is_partial() && placement.reduce_op() == ReduceOp::Avg;
}

// What happened at the boundary, for the backward pass.
class BoundaryNode : public torch::autograd::Node {
 public:
  // `spec` is the layout of the distributed tensor, `grad` that of its
  // gradient.
  BoundaryNode(SpecPtr spec, Placements grad)
      : spec_(std::move(spec)), grad_(std::move(grad)) {}

 protected:
  const SpecPtr spec_;
  const Placements grad_;
};

// Each shard of a tensor's gradient, for the tensor of its rank.
class FromShards final : public BoundaryNode {
 public:
  explicit FromShards(const SpecPtr& spec)
      : BoundaryNode(spec, grad_placements_of(spec->placements)) {}

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) {
      return variable_list(num_outputs());
    }
    auto shards =
        to_shards(grad_in_layout(grads[0], spec_->mesh, grad_), grad_);
    int64_t terms = 1;
    for (int64_t m = 0; m < spec_->mesh.ndim(); ++m) {
      terms *= is_average(spec_->placements[m]) ? spec_->mesh.size(m) : 1;
    }
    for (size_t i = 0; i < shards.size() && terms > 1; ++i) {
      shards[i] = at::div(shards[i], terms);
    }
    return shards;
  }

  std::string name() const override { return "FromShardsBackward"; }
};

// The gradient of a tensor that several ranks of this process share. As replica
// or as term of an average it counts once, as term of a sum once for each rank,
// and of the shards along a dimension each has its own part of the gradient.
// Linear: `SharedGrad` is the way back.
class FromShared final : public BoundaryNode {
 public:
  explicit FromShared(const SpecPtr& spec)
      : BoundaryNode(spec, grad_placements_of(spec->placements)) {}

  variable_list apply(variable_list&& grads) override;
  std::string name() const override { return "FromSharedBackward"; }
};

class SharedGrad final : public torch::autograd::Node {
 public:
  SharedGrad(SpecPtr grad, int64_t count)
      : grad_(std::move(grad)), count_(count) {}

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) {
      return {at::Tensor()};
    }
    const auto shard = with_strides_of(*grad_, std::move(grads[0]));
    const auto spread = from_shards(grad_, shard, /*shared=*/true);
    return {count_ == 1 ? spread : at::mul(spread, count_)};
  }

  std::string name() const override { return "SharedGradBackward"; }

 private:
  const SpecPtr grad_;
  const int64_t count_;
};

// Whether no other position has the same part of a tensor before this one.
bool is_first_with_its_part(const Spec& spec, int64_t position) {
  for (int64_t m = 0; m < spec.mesh.ndim(); ++m) {
    if (!spec.placements[m].is_shard() &&
        spec.mesh.coordinate(position, m) != 0) {
      return false;
    }
  }
  return true;
}

variable_list FromShared::apply(variable_list&& grads) {
  const auto& mesh = spec_->mesh;
  // A rank outside the mesh has given a tensor of which nothing is used.
  if (!grads[0].defined() || mesh.local_positions().empty()) {
    return {at::Tensor()};
  }
  const auto grad = grad_in_layout(grads[0], mesh, grad_);
  int64_t count = 1;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    const auto& placement = spec_->placements[m];
    count *=
        placement.is_partial() && !is_average(placement) ? mesh.size(m) : 1;
  }
  at::Tensor sum;
  {
    const c10::NoGradGuard no_grad;
    const auto& shards = current_shards(grad);
    for (size_t i = 0; i < shards.size(); ++i) {
      if (is_first_with_its_part(*spec_, mesh.local_positions()[i])) {
        sum = sum.defined() ? at::add(sum, shards[i]) : shards[i];
      }
    }
    // Memory of the gradient itself is not the shared tensor's.
    sum = count == 1 ? shard_alias(sum, grad) : at::mul(sum, count);
  }
  if (records(grad)) {
    record(
        make_node<SharedGrad>(distributed_meta(grad).spec, count), grad, sum);
  }
  return {sum};
}

// The gradients of shards, for the tensor of which they are.
class ToShards final : public BoundaryNode {
 public:
  using BoundaryNode::BoundaryNode;

  variable_list apply(variable_list&& grads) override {
    const auto& mesh = spec_->mesh;
    // The way back of FromShards. A gradient that is pending itself is the sum
    // of its terms already.
    int64_t terms = 1;
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      const bool divided = is_average(spec_->placements[m]);
      terms *= divided && !grad_[m].is_partial() ? mesh.size(m) : 1;
    }
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) {
        grads[i] = of_unused(grads, i);
      }
    }
    for (auto& grad : grads) {
      // An expanded gradient, or a transposed one: the layout promises memory
      // of its own, in its order, which all ranks know without asking.
      grad = with_strides_of(*spec_, std::move(grad));
      if (terms > 1) {
        grad = at::mul(grad, terms);
      }
    }
    return {from_shards(spec_->with(grad_), grads, /*shared=*/false)};
  }

  std::string name() const override { return "ToShardsBackward"; }

 private:
  // The gradient of a shard that was not used: that of a replica, which must be
  // equal, otherwise zero.
  at::Tensor of_unused(const variable_list& grads, size_t unused) const {
    const auto& mesh = spec_->mesh;
    const auto positions = mesh.local_positions();
    for (size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].defined() && are_replicas(positions[i], positions[unused])) {
        return grads[i];
      }
    }
    return at::zeros(
        local_shape(spec_->sizes, mesh, grad_, positions[unused]),
        at::TensorOptions(input_metadata(unused).options()));
  }

  bool are_replicas(int64_t one, int64_t other) const {
    const auto& mesh = spec_->mesh;
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      if (!grad_[m].is_replicate() &&
          mesh.coordinate(one, m) != mesh.coordinate(other, m)) {
        return false;
      }
    }
    return true;
  }
};

// The gradient of the whole value, for the replicated tensor of which it is.
// Every rank that lives here goes on with the same value, and so gets the same
// gradient.
class ToWhole final : public BoundaryNode {
 public:
  using BoundaryNode::BoundaryNode;

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) {
      return {at::Tensor()};
    }
    const auto grad = with_strides_of(*spec_, std::move(grads[0]));
    return {from_shards(spec_->with(grad_), grad, /*shared=*/true)};
  }

  std::string name() const override { return "ToWholeBackward"; }
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

at::Tensor from_shards(
    const SpecPtr& spec, at::TensorList shards, bool shared) {
  auto tensor = make_distributed(spec, separate_shards(*spec, shards, shared));
  count_writes_of(shards, tensor);
  if (records(shards)) {
    // Over processes each rank has a tensor of its own, which gets a gradient
    // whatever the others hold.
    const bool several = spec->mesh.local_positions().size() != 1;
    record(
        shared && several ? make_node<FromShared>(spec)
                          : make_node<FromShards>(spec),
        shards,
        tensor);
  }
  if (has_tangent(shards)) {
    set_tangent(tensor, from_shards(spec, tangents_of(shards), shared));
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
  if (const auto tangent = tangent_in_layout(tensor, "to_local");
      tangent.defined()) {
    const auto parts = to_shards(tangent, grad_placements);
    for (size_t i = 0; i < locals.size(); ++i) {
      set_tangent(locals[i], parts[i]);
    }
  }
  return locals;
}

at::Tensor to_whole(
    const at::Tensor& replicated, PlacementsRef grad_placements) {
  auto whole = shard_alias(current_shards(replicated)[0], replicated);
  record_local<ToWhole>(replicated, grad_placements, whole);
  if (const auto tangent = tangent_in_layout(replicated, "full_tensor");
      tangent.defined()) {
    set_tangent(whole, to_whole(tangent, grad_placements));
  }
  return whole;
}

}  // namespace tessera::detail
