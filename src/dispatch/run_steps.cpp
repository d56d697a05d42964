#include "dispatch/run_steps.h"

#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

// For each local position: the sizes along tensor dimension `dim` of the shards
// in its group, under `placements`.
std::vector<Parts> group_parts(
    const DeviceMesh& mesh,
    int64_t mesh_dim,
    SizesRef sizes,
    PlacementsRef placements,
    int64_t dim) {
  std::vector<Parts> parts;
  for (const int64_t position : mesh.local_positions()) {
    Parts sizes_of_group;
    for (const int64_t peer : mesh.group(position, mesh_dim)) {
      sizes_of_group.push_back(
          local_range(sizes[dim], dim, mesh, placements, peer).size);
    }
    parts.push_back(std::move(sizes_of_group));
  }
  return parts;
}

Shards slice(
    const DeviceMesh& mesh,
    SizesRef sizes,
    const Step& step,
    const Shards& in,
    Slices slices) {
  const int64_t dim = step.after[step.mesh_dim].dim();
  Shards out;
  for (size_t i = 0; i < in.size(); ++i) {
    const int64_t position = mesh.local_positions()[i];
    const auto held = local_range(sizes[dim], dim, mesh, step.before, position);
    const auto kept = local_range(sizes[dim], dim, mesh, step.after, position);
    auto part = in[i].narrow(dim, kept.begin - held.begin, kept.size);
    switch (slices) {
      case Slices::Alias:
        break;
      case Slices::Contiguous:
        part = part.contiguous();
        break;
      case Slices::Copy:
        part = part.clone(at::MemoryFormat::Contiguous);
        break;
    }
    out.push_back(std::move(part));
  }
  return out;
}

// What a rank that adds nothing to a reduction by `op` must hold.
at::Tensor neutral(const at::Tensor& like, ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return at::zeros_like(like);
    case ReduceOp::Product:
      return at::full_like(like, 1);
    case ReduceOp::Avg:
    case ReduceOp::Min:
    case ReduceOp::Max:
      return like;  // the reduction of equal terms is the term
  }
  TORCH_INTERNAL_ASSERT(false, "unknown reduction");
}

Shards to_partial(const DeviceMesh& mesh, const Step& step, const Shards& in) {
  const auto op = step.after[step.mesh_dim].reduce_op();
  Shards out;
  for (size_t i = 0; i < in.size(); ++i) {
    const int64_t position = mesh.local_positions()[i];
    out.push_back(
        mesh.coordinate(position, step.mesh_dim) == 0 ? in[i]
                                                      : neutral(in[i], op));
  }
  return out;
}

Shards run_step(
    const DeviceMesh& mesh,
    SizesRef sizes,
    const Step& step,
    const Shards& in,
    Slices slices) {
  const int64_t m = step.mesh_dim;
  const MeshDim at{mesh, m};
  const Placement& before = step.before[m];
  const Placement& after = step.after[m];
  switch (step.kind) {
    case Step::Kind::AllGather:
      return collectives(mesh).all_gather(
          at,
          in,
          before.dim(),
          group_parts(mesh, m, sizes, step.before, before.dim()));
    case Step::Kind::AllToAll:
      return collectives(mesh).all_to_all(
          at,
          in,
          after.dim(),
          group_parts(mesh, m, sizes, step.after, after.dim()),
          before.dim(),
          group_parts(mesh, m, sizes, step.before, before.dim()));
    case Step::Kind::AllReduce:
      return collectives(mesh).all_reduce(at, in, before.reduce_op());
    case Step::Kind::ReduceScatter:
      return collectives(mesh).reduce_scatter(
          at,
          in,
          after.dim(),
          group_parts(mesh, m, sizes, step.after, after.dim()),
          before.reduce_op());
    case Step::Kind::Slice:
      return slice(mesh, sizes, step, in, slices);
    case Step::Kind::ToPartial:
      return to_partial(mesh, step, in);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown step");
}

// Whether the step leaves elements in the order in memory that they have.
bool keeps_strides(const DeviceMesh& mesh, const Step& step, Slices slices) {
  switch (step.kind) {
    case Step::Kind::AllGather:
    case Step::Kind::AllToAll:
    case Step::Kind::AllReduce:
    case Step::Kind::ReduceScatter:
      return mesh.size(step.mesh_dim) == 1;  // returns its input
    case Step::Kind::Slice:
      return slices == Slices::Alias;
    case Step::Kind::ToPartial:
      return true;
  }
  TORCH_INTERNAL_ASSERT(false, "unknown step");
}

}  // namespace

Sizes strides_after(
    const DeviceMesh& mesh,
    SizesRef sizes,
    SizesRef strides,
    const RedistributePlan& plan,
    Slices slices) {
  for (const Step& step : plan.steps) {
    if (!keeps_strides(mesh, step, slices)) {
      return row_major_strides(sizes);
    }
  }
  return Sizes(strides);
}

Shards run_steps(
    const DeviceMesh& mesh,
    SizesRef sizes,
    const RedistributePlan& plan,
    Shards shards,
    Slices slices) {
  // Sparse shards (of a table's gradient) move as dense ones.
  for (size_t i = 0; i < shards.size() && !plan.steps.empty(); ++i) {
    if (shards[i].is_sparse()) {
      shards[i] = shards[i].to_dense();
    }
  }
  for (const Step& step : plan.steps) {
    shards = run_step(mesh, sizes, step, shards, slices);
  }
  return shards;
}

}  // namespace tessera::detail
