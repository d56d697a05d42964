#include "dispatch/autograd.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <unordered_set>

#include "comm/comm_event.h"
#include "dispatch/plain_args.h"
#include "dispatch/run_steps.h"
#include "plan/redistribute_plan.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

using torch::autograd::AutogradContext;
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

struct Layout : torch::CustomClassHolder {
  Layout(SpecPtr s, Placements g) : spec(std::move(s)), grad(std::move(g)) {}
  SpecPtr spec;
  Placements grad;
};

Layout& saved_layout(AutogradContext* ctx) {
  return *static_cast<Layout*>(ctx->saved_data["layout"].toCapsule().get());
}

void save_layout(AutogradContext* ctx, SpecPtr spec, Placements grad) {
  ctx->saved_data["layout"] = c10::IValue::make_capsule(
      c10::make_intrusive<Layout>(std::move(spec), std::move(grad)));
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

class FromShards : public torch::autograd::Function<FromShards> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx, SpecPtr spec, bool shared, at::TensorList locals) {
    save_layout(ctx, spec, grad_placements_of(spec->placements));
    ctx->saved_data["shared"] = shared;
    auto shards = separate_shards(*spec, locals, shared);
    for (auto& shard : shards) {
      shard = shard.detach();
    }
    return make_distributed(std::move(spec), std::move(shards));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& layout = saved_layout(ctx);
    const auto& spec = *layout.spec;
    const auto grad = grad_in_layout(grads[0], spec.mesh, layout.grad);
    auto shards = to_shards(grad, layout.grad);
    variable_list result{at::Tensor(), at::Tensor()};
    if (!ctx->saved_data["shared"].toBool()) {
      result.insert(result.end(), shards.begin(), shards.end());
      return result;
    }
    at::Tensor sum;
    for (size_t i = 0; i < shards.size(); ++i) {
      if (counts_for_shared(spec, spec.mesh.local_positions()[i])) {
        sum = sum.defined() ? at::add(sum, shards[i]) : shards[i];
      }
    }
    result.push_back(sum);
    return result;
  }
};

class ToShards : public torch::autograd::Function<ToShards> {
 public:
  static variable_list forward(
      AutogradContext* ctx, const at::Tensor& tensor, Placements grad) {
    const auto& meta = distributed_meta(tensor);
    save_layout(ctx, meta.spec, std::move(grad));
    variable_list locals;
    for (const auto& shard : meta.shards) {
      locals.push_back(shard.detach());
    }
    return locals;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& layout = saved_layout(ctx);
    const auto& spec = *layout.spec;
    const auto grad_spec = spec.with(layout.grad);
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) {
        grads[i] = at::zeros(
            local_shape(
                spec.sizes,
                spec.mesh,
                layout.grad,
                spec.mesh.local_positions()[i]),
            at::TensorOptions().dtype(spec.dtype));
      } else if (!grads[i].is_non_overlapping_and_dense()) {
        // An expanded gradient: the layout promises memory of its own.
        grads[i] = grads[i].contiguous();
      }
    }
    return {from_shards(grad_spec, grads, false), at::Tensor()};
  }
};

class ToWhole : public torch::autograd::Function<ToWhole> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx, const at::Tensor& tensor, Placements grad) {
    const auto& meta = distributed_meta(tensor);
    save_layout(ctx, meta.spec, std::move(grad));
    return meta.shards[0].detach();
  }

  // Every rank that lives here goes on with the same value, and so gets the
  // same gradient, in memory of its own.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& layout = saved_layout(ctx);
    const auto& spec = *layout.spec;
    variable_list shards;
    for (size_t i = 0; i < spec.mesh.local_positions().size(); ++i) {
      shards.push_back(
          i == 0 ? grads[0].contiguous()
                 : grads[0].clone(at::MemoryFormat::Contiguous));
    }
    return {from_shards(spec.with(layout.grad), shards, false), at::Tensor()};
  }
};

class Redistribute : public torch::autograd::Function<Redistribute> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx, const at::Tensor& tensor, Placements to) {
    const auto& spec = distributed_meta(tensor).spec;
    save_layout(ctx, spec, grad_placements_of(spec->placements));
    return move_to(tensor, to, Slices::Copy);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& layout = saved_layout(ctx);
    return {
        grad_in_layout(grads[0], layout.spec->mesh, layout.grad), at::Tensor()};
  }
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
  if (records(shards)) {
    return FromShards::apply(std::move(spec), shared, shards);
  }
  auto parts = separate_shards(*spec, shards, shared);
  return make_distributed(std::move(spec), std::move(parts));
}

std::vector<at::Tensor> to_shards(
    const at::Tensor& tensor, PlacementsRef grad_placements) {
  check_current(tensor);
  if (records({tensor})) {
    return ToShards::apply(
        tensor, Placements(grad_placements.begin(), grad_placements.end()));
  }
  const auto& shards = distributed_meta(tensor).shards;
  return {shards.begin(), shards.end()};
}

at::Tensor to_whole(
    const at::Tensor& replicated, PlacementsRef grad_placements) {
  check_current(replicated);
  if (records({replicated})) {
    return ToWhole::apply(
        replicated, Placements(grad_placements.begin(), grad_placements.end()));
  }
  return distributed_meta(replicated).shards[0];
}

at::Tensor redistribute(
    const at::Tensor& tensor, PlacementsRef to, std::string_view cause) {
  if (PlacementsRef(distributed_meta(tensor).spec->placements) == to) {
    return tensor;
  }
  check_current(tensor);
  const CommCauseGuard guard(cause);
  if (records({tensor})) {
    return Redistribute::apply(tensor, Placements(to.begin(), to.end()));
  }
  return move_to(tensor, to, Slices::Copy);
}

}  // namespace tessera::detail
