#include "tessera/dtensor.h"

#include <ATen/core/Formatting.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <ostream>

#include "api/from_local.h"
#include "dispatch/autograd.h"
#include "dispatch/grad_layout.h"
#include "dispatch/plain_args.h"
#include "dispatch/tangents.h"
#include "dispatch/tensor.h"

namespace tessera {

using detail::distributed_meta;

namespace {

// The layout of the gradient of what `caller` hands out, which is `tensor` with
// the placements `handed_out`: each rank's shard of the gradient has the shape
// of what that rank gets.
Placements grad_layout(
    const DTensor& tensor,
    PlacementsRef handed_out,
    std::optional<Placements> requested,
    const char* caller) {
  if (!requested.has_value()) {
    return detail::grad_placements_of(handed_out);
  }
  const auto& mesh = tensor.mesh();
  const Placements asked = *std::move(requested);
  auto layout = normalize_placements(asked, mesh, tensor.dim(), caller);
  for (int64_t position = 0; position < mesh.size(); ++position) {
    const auto given = local_shape(tensor.sizes(), mesh, handed_out, position);
    const auto wanted = local_shape(tensor.sizes(), mesh, layout, position);
    TORCH_CHECK_VALUE(
        given == wanted,
        "[",
        caller,
        "] expected grad_placements that shard the gradient as ",
        to_string(handed_out),
        " shards its tensor, but got ",
        to_string(layout),
        ": rank ",
        mesh.all_ranks()[position],
        " is given a tensor of shape ",
        SizesRef(given),
        ", and its gradient would have the shape ",
        SizesRef(wanted),
        ". Where the tensor is not sharded, give Replicate if all ranks have "
        "the same gradient, and Partial if the gradient is the sum of theirs");
  }
  return layout;
}

bool all_ranks_are_here(const DeviceMesh& mesh) {
  return mesh.local_positions().size() == static_cast<size_t>(mesh.size());
}

at::Tensor empty_like_shard(const DTensor& tensor) {
  return at::empty({0}, tensor.options().device(tensor.device()));
}

}  // namespace

bool is_dtensor(const at::Tensor& tensor) { return detail::is_dtensor(tensor); }

DTensor::DTensor(at::Tensor tensor) : at::Tensor(std::move(tensor)) {
  TORCH_CHECK_TYPE(
      detail::is_dtensor(*this),
      "[DTensor] expected a distributed tensor, got ",
      defined() ? "a plain one" : "an undefined one",
      ": make one with distribute_tensor or DTensor::from_local");
}

DTensor DTensor::from_local(
    const at::Tensor& local,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FromLocalOptions& options) {
  return DTensor(
      detail::from_local({local}, /*shared=*/true, mesh, placements, options));
}

DTensor DTensor::from_local(
    at::TensorList locals,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FromLocalOptions& options) {
  return DTensor(
      detail::from_local(locals, /*shared=*/false, mesh, placements, options));
}

const SpecPtr& DTensor::spec() const { return distributed_meta(*this).spec; }
const DeviceMesh& DTensor::mesh() const { return spec()->mesh; }
PlacementsRef DTensor::placements() const { return spec()->placements; }

std::vector<at::Tensor> DTensor::shards(
    std::optional<Placements> grad_placements) const {
  return detail::to_shards(
      *this,
      grad_layout(*this, placements(), std::move(grad_placements), "shards"));
}

at::Tensor DTensor::to_local() const {
  // Before anything else what most calls are: one shard, nothing to
  // differentiate.
  if (distributed_meta(*this).shard_count() == 1 &&
      !(requires_grad() && at::GradMode::is_enabled()) &&
      !detail::has_tangent(*this)) {
    return detail::handed_out_shard(*this);
  }
  return to_local(std::nullopt);
}

at::Tensor DTensor::to_local(std::optional<Placements> grad_placements) const {
  const auto count = distributed_meta(*this).shard_count();
  if (count == 0) {
    return empty_like_shard(*this);
  }
  TORCH_CHECK(
      count == 1,
      "[to_local] ",
      count,
      " ranks live in this process (the world is simulated): use shard(rank) "
      "or shards()");
  return detail::to_shards(
      *this,
      grad_layout(
          *this, placements(), std::move(grad_placements), "to_local"))[0];
}

bool DTensor::reading_sends() const { return !detail::is_current(*this); }

at::Tensor DTensor::shard(int64_t rank) const {
  const int64_t position = mesh().position_of(rank);
  const auto positions = mesh().local_positions();
  const auto found = std::find(positions.begin(), positions.end(), position);
  TORCH_CHECK_INDEX(
      position >= 0 && found != positions.end(),
      "[shard] rank ",
      rank,
      position < 0 ? " is not in " : " does not live in this process: ",
      mesh().str());
  return detail::shard_alias(
      detail::current_shards(*this)[found - positions.begin()], *this);
}

at::Tensor DTensor::full_tensor(
    std::optional<Placements> grad_placements) const {
  const Placements replicated(mesh().ndim(), Replicate());
  const auto grad =
      grad_layout(*this, replicated, std::move(grad_placements), "full_tensor");
  const auto whole = redistribute(replicated);
  if (distributed_meta(whole).shard_count() == 0) {
    return empty_like_shard(*this);
  }
  // Replicas are equal: any will do. Of a sparse gradient the result is dense
  // whatever the layout: gathered shards are.
  const auto replica = detail::to_whole(whole, grad);
  return replica.is_sparse() ? replica.to_dense() : replica;
}

DTensor DTensor::redistribute(PlacementsRef placements) const {
  if (placements == this->placements()) {
    return *this;
  }
  const auto to =
      normalize_placements(placements, mesh(), dim(), "redistribute");
  for (size_t i = 0; i < to.size(); ++i) {
    TORCH_CHECK_VALUE(
        !to[i].is_partial() || to[i] == this->placements()[i],
        "[redistribute] cannot redistribute to ",
        to[i].str(),
        " on mesh dimension ",
        i,
        " from ",
        this->placements()[i].str(),
        ": a pending reduction only comes out of an op");
  }
  return DTensor(detail::redistribute(*this, to));
}

DTensor DTensor::redistribute(
    const DeviceMesh& mesh, PlacementsRef placements) const {
  if (mesh != this->mesh()) {
    // Throws if the tensor's world has ended.
    detail::collectives(this->mesh());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      mesh == this->mesh(),
      "[redistribute] cross-mesh redistribution, from ",
      this->mesh().str(),
      " to ",
      mesh.str(),
      ", is not supported: take full_tensor() and distribute that");
  return redistribute(placements);
}

std::ostream& operator<<(std::ostream& out, const DTensor& tensor) {
  const auto& spec = *tensor.spec();
  out << "DTensor(" << spec.str() << ")";
  // Printing sends nothing: other ranks may not print.
  if (tensor.reading_sends() && !all_ranks_are_here(spec.mesh)) {
    return out << "\na view of a sharded dimension, copied when every rank "
                  "reads it";
  }
  const auto& shards = detail::current_shards(tensor);
  for (size_t i = 0; i < shards.size(); ++i) {
    const int64_t position = spec.mesh.local_positions()[i];
    out << "\nrank " << spec.mesh.all_ranks()[position] << ":\n" << shards[i];
  }
  return out;
}

void keep_grad_layout(const at::Tensor& leaf) {
  detail::keep_grad_layout_of(leaf);
}

// The guard's scope is counted by the kernel's layer.
ImplicitReplication::ImplicitReplication() {
  detail::enter_implicit_replication();
}
ImplicitReplication::~ImplicitReplication() {
  detail::leave_implicit_replication();
}

}  // namespace tessera
