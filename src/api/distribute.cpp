#include "tessera/distribute.h"

#include <c10/core/GradMode.h>

#include "comm/collectives.h"
#include "comm/comm_event.h"
#include "dispatch/plain_value.h"
#include "dispatch/tensor.h"
#include "kernels/huge_pages.h"
#include "tessera/shard_math.h"

namespace tessera {

namespace {

using detail::Shards;

Placements or_replicated(PlacementsRef placements, const DeviceMesh& mesh) {
  return placements.empty() ? Placements(mesh.ndim(), Replicate())
                            : Placements(placements.begin(), placements.end());
}

// For each local position, how its group along `mesh_dim` divides tensor
// dimension `dim` once the mesh dimensions up to that one have been scattered.
std::vector<detail::Parts> parts_after(
    const Spec& spec, int64_t mesh_dim, int64_t dim) {
  Placements scattered(spec.mesh.ndim(), Replicate());
  for (int64_t m = 0; m <= mesh_dim; ++m) {
    scattered[m] = spec.placements[m];
  }
  std::vector<detail::Parts> parts;
  for (const int64_t position : spec.mesh.local_positions()) {
    detail::Parts sizes;
    for (const int64_t peer : spec.mesh.group(position, mesh_dim)) {
      sizes.push_back(
          local_range(spec.sizes[dim], dim, spec.mesh, scattered, peer).size);
    }
    parts.push_back(std::move(sizes));
  }
  return parts;
}

// Mesh dimension by mesh dimension, the first rank scatters its value.
Shards scatter_value(const Spec& spec, const at::Tensor& value) {
  auto& comm = detail::collectives(spec.mesh);
  Shards shards(spec.mesh.local_positions().size(), value);
  for (int64_t m = 0; m < spec.mesh.ndim(); ++m) {
    const detail::MeshDim at{spec.mesh, m};
    const auto& placement = spec.placements[m];
    if (placement.is_shard()) {
      const auto parts = parts_after(spec, m, placement.dim());
      shards = comm.scatter(at, shards, placement.dim(), parts);
    } else {
      shards = comm.broadcast(at, shards);
    }
  }
  return shards;
}

// Each rank's part of its own copy.
Shards cut_out(const Spec& spec, const at::Tensor& value) {
  Shards shards;
  for (const int64_t position : spec.mesh.local_positions()) {
    shards.push_back(
        detail::cut_shard(value, spec.mesh, spec.placements, position));
  }
  return shards;
}

// A shard must own its memory, or writes would reach the caller's tensor or
// another rank's shard.
void own_memory(Shards& shards, const at::Tensor& value) {
  for (size_t i = 0; i < shards.size(); ++i) {
    const bool shared = shards[i].is_alias_of(value) ||
                        (i > 0 && shards[i].is_same(shards[i - 1]));
    shards[i] =
        shared ? detail::copy_on_huge_pages(shards[i]) : shards[i].contiguous();
  }
}

void check_already_distributed(
    const at::Tensor& tensor, const DeviceMesh& mesh, PlacementsRef wanted) {
  const auto& spec = *detail::distributed_meta(tensor).spec;
  if (spec.mesh != mesh) {
    // Throws if the tensor's world has ended.
    detail::collectives(spec.mesh);
  }
  TORCH_CHECK_VALUE(
      spec.mesh == mesh,
      "[distribute_tensor] cannot distribute a distributed tensor on ",
      spec.mesh.str(),
      " to a different device mesh ",
      mesh.str());
  TORCH_CHECK_VALUE(
      PlacementsRef(spec.placements) == wanted,
      "[distribute_tensor] cannot distribute a distributed tensor laid out as ",
      to_string(spec.placements),
      " to a different placements ",
      to_string(wanted),
      ": use redistribute");
}

Placements checked_placements(
    const at::Tensor& tensor, const DeviceMesh& mesh, PlacementsRef given) {
  TORCH_CHECK_VALUE(
      tensor.defined(), "[distribute_tensor] the tensor is undefined");
  if (!detail::is_dtensor(tensor)) {
    detail::check_plain_value(tensor, "distribute_tensor");
  }
  const auto placements = normalize_placements(
      or_replicated(given, mesh), mesh, tensor.dim(), "distribute_tensor");
  for (const auto& placement : placements) {
    TORCH_CHECK_VALUE(
        !placement.is_partial(),
        "[distribute_tensor] expected Shard or Replicate placements, got ",
        to_string(placements),
        ": a pending reduction only comes out of an op or from_local");
  }
  return placements;
}

at::Tensor distribute_value(
    const at::Tensor& tensor,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const DistributeOptions& options) {
  c10::NoGradGuard no_grad;
  detail::CommCauseGuard cause("distribute_tensor");
  auto spec =
      Spec::make(mesh, placements, tensor.sizes(), tensor.scalar_type());
  // Shards live where the mesh is; what has no data has none anywhere.
  auto value = tensor.detach();
  const c10::Device device(mesh.device_type());
  if (!value.is_meta() && value.device().type() != device.type()) {
    value = value.to(device);
  }
  auto shards = options.same_on_all_ranks ? cut_out(*spec, value)
                                          : scatter_value(*spec, value);
  own_memory(shards, value);
  return detail::make_distributed(std::move(spec), std::move(shards));
}

// What is distributed already may be the result of an op.
void check_leaf(const at::Tensor& tensor) {
  TORCH_CHECK(
      !tensor.defined() || detail::is_dtensor(tensor) ||
          !tensor.requires_grad() || tensor.is_leaf(),
      "[distribute_tensor] can only distribute leaf tensors, but this one is "
      "the result of an op that autograd records: distribute leaf tensor(s) "
      "and compute on those, or detach() it");
}

// The placements that are asked for. Throws if the tensor cannot have them: it
// is no leaf, or distributed in another layout.
Placements placements_to_give(
    const at::Tensor& tensor, const DeviceMesh& mesh, PlacementsRef given) {
  check_leaf(tensor);
  auto placements = checked_placements(tensor, mesh, given);
  if (detail::is_dtensor(tensor)) {
    check_already_distributed(tensor, mesh, placements);
  }
  return placements;
}

// The gradient that a parameter has already: it must go with the parameter.
// Undefined where there is none to convert.
at::Tensor plain_grad_of(const at::Tensor& leaf) {
  const auto& grad = leaf.grad();
  if (!grad.defined() || detail::is_dtensor(grad)) {
    return {};
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      grad.layout() == c10::kStrided,
      "[distribute_] the parameter has a sparse gradient, which cannot be "
      "distributed: set it to none before, or make it dense");
  TORCH_CHECK(
      !grad.requires_grad(),
      "[distribute_] the parameter's gradient is part of a graph itself: "
      "detach() it or set it to none before");
  return grad;
}

}  // namespace

DeviceMesh device_mesh(
    std::string_view device_type,
    const at::Tensor& ranks,
    c10::ArrayRef<std::string> dim_names) {
  TORCH_CHECK_VALUE(
      ranks.defined() && ranks.dim() > 0 &&
          c10::isIntegralType(ranks.scalar_type(), /*includeBool=*/false),
      "[device_mesh] expected a tensor of integers with at least one "
      "dimension");
  const auto list = ranks.to(at::kCPU, at::kLong).contiguous();
  return DeviceMesh(
      device_type,
      {list.const_data_ptr<int64_t>(), static_cast<size_t>(list.numel())},
      list.sizes(),
      dim_names);
}

DTensor distribute_tensor(
    const at::Tensor& tensor,
    const DeviceMesh& mesh,
    PlacementsRef given,
    const DistributeOptions& options) {
  const auto placements = placements_to_give(tensor, mesh, given);
  if (detail::is_dtensor(tensor)) {
    return DTensor(tensor);
  }
  auto result = distribute_value(tensor, mesh, placements, options);
  result.requires_grad_(tensor.requires_grad());
  return DTensor(std::move(result));
}

void distribute_(
    // By value: a handle, and what it stands for changes.
    at::Tensor tensor,  // NOLINT(performance-unnecessary-value-param)
    const DeviceMesh& mesh,
    PlacementsRef given,
    const DistributeOptions& options) {
  const auto placements = placements_to_give(tensor, mesh, given);
  if (detail::is_dtensor(tensor)) {
    return;
  }
  const detail::MadeLike mode(tensor);
  const auto grad = plain_grad_of(tensor);
  detail::become(tensor, distribute_value(tensor, mesh, placements, options));
  if (grad.defined()) {
    detail::become(grad, distribute_value(grad, mesh, placements, options));
  }
}

}  // namespace tessera
