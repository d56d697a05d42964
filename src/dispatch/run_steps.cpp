#include "dispatch/run_steps.h"

#include <ATen/ops/full_like.h>

#include <limits>

#include "core/terms.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

// What a rank that adds nothing to a reduction by `op` must hold. A number
// stays one: ATen does not promote by its dtype.
at::Tensor neutral(const at::Tensor& like, ReduceOp op) {
  const auto filled = [&like](int value) {
    at::Tensor tensor = at::full_like(like, value);
    if (like.unsafeGetTensorImpl()->is_wrapped_number()) {
      tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    return tensor;
  };
  switch (op) {
    case ReduceOp::Sum:
      return filled(0);
    case ReduceOp::Product:
      return filled(1);
    case ReduceOp::Avg:
    case ReduceOp::Min:
    case ReduceOp::Max:
      return like;  // the reduction of equal terms is the term
  }
  TORCH_INTERNAL_ASSERT(false, "unknown reduction");
}

// Sums that were held in float are rounded once, when they are complete.
void round_to(c10::ScalarType dtype, Shards& sums) {
  for (at::Tensor& sum : sums) {
    sum = sum.to(dtype);
  }
}

// Runs the steps of one redistribution of a tensor of global `sizes`.
class StepRunner {
 public:
  StepRunner(const DeviceMesh& mesh, SizesRef sizes, Slices slices)
      : mesh_(mesh), sizes_(sizes), slices_(slices) {}

  Shards run(const Step& step, const Shards& in) const {
    const MeshDim at{mesh_, step.mesh_dim};
    const Placement& before = step.before[step.mesh_dim];
    const Placement& after = step.after[step.mesh_dim];
    auto& comm = collectives(mesh_);
    switch (step.kind) {
      case Step::Kind::AllGather:
        return comm.all_gather(
            at, in, before.dim(), parts(step, step.before, before.dim()));
      case Step::Kind::AllToAll:
        return comm.all_to_all(
            at,
            in,
            {after.dim(), parts(step, step.after, after.dim())},
            {before.dim(), parts(step, step.before, before.dim())});
      case Step::Kind::AllReduce:
        return comm.all_reduce(at, in, before.reduce_op());
      case Step::Kind::ReduceScatter:
        return comm.reduce_scatter(
            at,
            in,
            after.dim(),
            parts(step, step.after, after.dim()),
            before.reduce_op());
      case Step::Kind::Slice:
        return slice(step, in);
      case Step::Kind::ToPartial:
        return to_partial(step, in);
    }
    TORCH_INTERNAL_ASSERT(false, "unknown step");
  }

 private:
  // For each local position: the sizes along tensor dimension `dim` of the
  // shards in its group, under `placements`.
  std::vector<Parts> parts(
      const Step& step, PlacementsRef placements, int64_t dim) const {
    std::vector<Parts> parts;
    for (const int64_t position : mesh_.local_positions()) {
      Parts sizes_of_group;
      for (const int64_t peer : mesh_.group(position, step.mesh_dim)) {
        sizes_of_group.push_back(
            local_range(sizes_[dim], dim, mesh_, placements, peer).size);
      }
      parts.push_back(std::move(sizes_of_group));
    }
    return parts;
  }

  Shards slice(const Step& step, const Shards& in) const {
    const int64_t dim = step.after[step.mesh_dim].dim();
    const auto range = [&](PlacementsRef placements, size_t i) {
      return local_range(
          sizes_[dim], dim, mesh_, placements, mesh_.local_positions()[i]);
    };
    Shards out;
    for (size_t i = 0; i < in.size(); ++i) {
      const auto held = range(step.before, i);
      const auto kept = range(step.after, i);
      auto part = in[i].narrow(dim, kept.begin - held.begin, kept.size);
      switch (slices_) {
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

  Shards to_partial(const Step& step, const Shards& in) const {
    const auto op = step.after[step.mesh_dim].reduce_op();
    Shards out;
    for (size_t i = 0; i < in.size(); ++i) {
      const int64_t position = mesh_.local_positions()[i];
      out.push_back(
          mesh_.coordinate(position, step.mesh_dim) == 0 ? in[i]
                                                         : neutral(in[i], op));
    }
    return out;
  }

  const DeviceMesh& mesh_;
  SizesRef sizes_;
  Slices slices_;
};

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
    const Spec& from,
    const RedistributePlan& plan,
    Shards shards,
    Slices slices) {
  // Sparse shards (of a table's gradient) move as dense ones.
  for (size_t i = 0; i < shards.size() && !plan.steps.empty(); ++i) {
    if (shards[i].is_sparse()) {
      shards[i] = shards[i].to_dense();
    }
  }
  const StepRunner runner(from.mesh, from.sizes, slices);
  bool to_round =
      !plan.steps.empty() &&
      shard_dtype_in(from, plan.steps.back().after) != from.shard_dtype;
  for (const Step& step : plan.steps) {
    shards = runner.run(step, shards);
    if (to_round && !holds_terms(from.mesh, step.after)) {
      round_to(from.dtype, shards);
      to_round = false;
    }
  }
  return shards;
}

}  // namespace tessera::detail
