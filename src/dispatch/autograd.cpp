#include "dispatch/autograd.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>

#include "comm/comm_event.h"
#include "dispatch/plain_args.h"
#include "dispatch/run_steps.h"
#include "plan/redistribute_plan.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

using torch::autograd::variable_list;

bool records(at::TensorList tensors) {
  if (!at::GradMode::is_enabled()) {
    return false;
  }
  return std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return tensor.requires_grad();
  });
}

// Below autograd.
at::Tensor move_to(const at::Tensor& tensor, PlacementsRef to, Slices slices) {
  const auto& meta = distributed_meta(tensor);
  const auto plan = cached_redistribution(*meta.spec, to);
  auto target =
      Spec::make(meta.spec->mesh, to, meta.spec->sizes, meta.spec->dtype);
  if (plan->steps.empty()) {
    // Another name for the same data (a mesh dimension of one rank).
    target = meta.spec->with(to);
  }
  return make_distributed(
      std::move(target),
      run_steps(meta.spec->mesh, meta.spec->sizes, *plan, meta.shards, slices));
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

// The shards of one tensor for all ranks, or of a tensor a rank. In a simulated
// world no two of them may share memory: what is written into one rank's shard
// would be seen, and written again, by another. The first keeps the caller's.
Shards separate_shards(const Spec& spec, at::TensorList locals, bool shared) {
  Shards shards(locals.begin(), locals.end());
  if (shared) {
    shards.resize(spec.mesh.local_positions().size(), locals[0]);
  }
  std::unordered_set<const c10::StorageImpl*> seen;
  for (size_t i = 0; i < shards.size() && shards.size() > 1; ++i) {
    if (shards[i].has_storage() &&
        !seen.insert(shards[i].storage().unsafeGetStorageImpl()).second) {
      shards[i] = shards[i].detach().clone();
    }
  }
  return shards;
}

// What happened at the boundary, for the way back. These are nodes of the graph
// by hand: torch::autograd::Function keeps what it needs in maps by name, which
// takes longer than all of to_local.
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

// Counted by std::shared_ptr up to torch 2.12, with a deleter that spares the
// stack, and by c10::intrusive_ptr since.
using NodePtr = decltype(torch::autograd::Edge::function);

template <class NodeType, class... Args>
NodePtr make_node(Args&&... args) {
  if constexpr (std::is_same_v<
                    NodePtr,
                    std::shared_ptr<torch::autograd::Node>>) {
    return NodePtr(new NodeType(std::forward<Args>(args)...), [](auto* node) {
      deleteNode(node);
    });
  } else {
    return c10::make_intrusive<NodeType>(std::forward<Args>(args)...);
  }
}

// Makes `outputs` the results of `node`, whose gradients go to `inputs`.
void record(
    const NodePtr& node, at::TensorList inputs, at::TensorList outputs) {
  torch::autograd::edge_list edges;
  edges.reserve(inputs.size());
  for (const auto& input : inputs) {
    edges.push_back(torch::autograd::impl::gradient_edge(input));
  }
  node->set_next_edges(std::move(edges));
  for (const auto& output : outputs) {
    torch::autograd::set_history(output, node);
  }
}

class FromShards final : public BoundaryNode {
 public:
  FromShards(SpecPtr spec, bool shared)
      : BoundaryNode(spec, grad_placements_of(spec->placements)),
        shared_(shared) {}

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) {
      return variable_list(num_outputs());
    }
    const auto grad = grad_in_layout(grads[0], spec_->mesh, grad_);
    auto shards = to_shards(grad, grad_);
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
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) {
        grads[i] = at::zeros(
            local_shape(spec_->sizes, mesh, grad_, mesh.local_positions()[i]),
            at::TensorOptions(input_metadata(i).options()));
      } else if (!grads[i].is_non_overlapping_and_dense()) {
        // An expanded gradient: the layout promises memory of its own.
        grads[i] = grads[i].contiguous();
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
    for (size_t i = 0; i < spec_->mesh.local_positions().size(); ++i) {
      shards.push_back(
          i == 0 ? grads[0].contiguous()
                 : grads[0].clone(at::MemoryFormat::Contiguous));
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

at::Tensor from_shards(SpecPtr spec, at::TensorList shards, bool shared) {
  auto parts = separate_shards(*spec, shards, shared);
  if (!records(shards)) {
    return make_distributed(std::move(spec), std::move(parts));
  }
  for (auto& part : parts) {
    part = part.detach();
  }
  auto tensor = make_distributed(spec, std::move(parts));
  record(make_node<FromShards>(spec, shared), shards, tensor);
  return tensor;
}

std::vector<at::Tensor> to_shards(
    const at::Tensor& tensor, PlacementsRef grad_placements) {
  check_current(tensor);
  const auto& meta = distributed_meta(tensor);
  if (!records(tensor)) {
    return {meta.shards.begin(), meta.shards.end()};
  }
  std::vector<at::Tensor> locals;
  for (const auto& shard : meta.shards) {
    locals.push_back(shard.detach());
  }
  record(
      make_node<ToShards>(
          meta.spec,
          Placements(grad_placements.begin(), grad_placements.end())),
      tensor,
      locals);
  return locals;
}

at::Tensor to_whole(
    const at::Tensor& replicated, PlacementsRef grad_placements) {
  check_current(replicated);
  const auto& meta = distributed_meta(replicated);
  if (!records(replicated)) {
    return meta.shards[0];
  }
  auto whole = meta.shards[0].detach();
  record(
      make_node<ToWhole>(
          meta.spec,
          Placements(grad_placements.begin(), grad_placements.end())),
      replicated,
      whole);
  return whole;
}

at::Tensor redistribute(
    const at::Tensor& tensor, PlacementsRef to, std::string_view cause) {
  if (PlacementsRef(distributed_meta(tensor).spec->placements) == to) {
    return tensor;
  }
  check_current(tensor);
  const CommCauseGuard guard(cause);
  auto moved = move_to(tensor, to, Slices::Copy);
  if (records(tensor)) {
    record(
        make_node<Redistribute>(distributed_meta(tensor).spec), tensor, moved);
  }
  return moved;
}

at::Tensor with_grad_in_layout(const at::Tensor& tensor) {
  check_current(tensor);
  const auto& meta = distributed_meta(tensor);
  auto same = make_distributed(meta.spec, meta.shards);
  record(make_node<Redistribute>(meta.spec), tensor, same);
  return same;
}

}  // namespace tessera::detail
