#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <ostream>

#include "api/sharded_ranks.h"
#include "dispatch/plain_value.h"
#include "dispatch/tensor.h"
#include "tessera/shard_math.h"
#include "tessera/sharded.h"

namespace tessera {

struct ShardedTensor::State {
  // Where every rank holds one chunk, or the layout is another one.
  at::Tensor tensor;
  std::optional<ChunkShardingSpec> spec;
  // Where a rank holds several chunks, which no distributed tensor does.
  std::vector<LocalShard> chunks;
  Sizes sizes;
};

namespace {

// The ranks in the order of the chunks; each once.
std::vector<int64_t> ranks_of(const ChunkShardingSpec& spec) {
  std::vector<int64_t> ranks;
  for (const auto& placement : spec.placements) {
    if (std::find(ranks.begin(), ranks.end(), placement.rank) == ranks.end()) {
      ranks.push_back(placement.rank);
    }
  }
  return ranks;
}

DeviceMesh mesh_of(
    const ChunkShardingSpec& spec, const std::vector<int64_t>& ranks) {
  return {spec.placements[0].device_type, ranks};
}

int64_t checked_dim(const ChunkShardingSpec& spec, int64_t ndim) {
  TORCH_CHECK_VALUE(
      -ndim <= spec.dim && spec.dim < ndim,
      "[ShardedTensor] the dim of ",
      spec.str(),
      " is out of range for a tensor of ",
      ndim,
      " dimensions");
  return spec.dim < 0 ? spec.dim + ndim : spec.dim;
}

std::optional<ChunkShardingSpec> spec_of(const Spec& layout) {
  if (layout.mesh.ndim() != 1 || !layout.placements[0].is_shard()) {
    return std::nullopt;
  }
  const auto ranks = layout.mesh.all_ranks();
  std::vector<ShardPlacement> placements(ranks.begin(), ranks.end());
  // A slice of a larger mesh has groups side by side: no one list of ranks.
  if (static_cast<int64_t>(ranks.size()) != layout.mesh.size()) {
    return std::nullopt;
  }
  for (auto& placement : placements) {
    placement.device_type = layout.mesh.device_type();
  }
  return ChunkShardingSpec(layout.placements[0].dim(), std::move(placements));
}

// Several chunks a rank: every rank cuts its own out of a copy of the whole.
std::vector<LocalShard> local_chunks(
    const DTensor& whole, const ChunkShardingSpec& spec, int64_t dim) {
  std::vector<LocalShard> chunks;
  const auto count = static_cast<int64_t>(spec.placements.size());
  const auto& mesh = whole.mesh();
  for (const int64_t position : detail::positions_by_rank(mesh)) {
    const int64_t rank = mesh.all_ranks()[position];
    const auto value = whole.shard(rank);
    for (int64_t i = 0; i < count; ++i) {
      if (spec.placements[i].rank != rank) {
        continue;
      }
      const auto range = chunk(value.size(dim), count, i);
      Sizes offsets(value.dim(), 0);
      offsets[dim] = range.begin;
      chunks.push_back(
          {value.narrow(dim, range.begin, range.size).clone(), offsets, rank});
    }
  }
  return chunks;
}

}  // namespace

ShardedTensor::ShardedTensor(const at::Tensor& distributed) {
  TORCH_CHECK_TYPE(
      is_dtensor(distributed),
      "[ShardedTensor] expected a distributed tensor: make one with "
      "distribute_tensor, or use ShardedTensor::from_full");
  const auto& layout = *detail::distributed_meta(distributed).spec;
  state_ = std::make_shared<const State>(
      State{distributed, spec_of(layout), {}, layout.sizes});
}

ShardedTensor ShardedTensor::from_full(
    const at::Tensor& full,
    const ChunkShardingSpec& spec,
    const DistributeOptions& options) {
  TORCH_CHECK_TYPE(
      full.defined() && !is_dtensor(full),
      "[ShardedTensor::from_full] expected a plain tensor; for a distributed "
      "one use ShardedTensor(tensor)");
  detail::check_plain_value(full, "ShardedTensor::from_full");
  const int64_t dim = checked_dim(spec, full.dim());
  const auto ranks = ranks_of(spec);
  const auto mesh = mesh_of(spec, ranks);
  const bool several = detail::names_a_rank_twice(spec);
  const bool in_order = std::is_sorted(ranks.begin(), ranks.end());
  auto state = std::make_shared<State>();
  state->spec = spec;
  state->sizes = Sizes(full.sizes());
  if (!several && (in_order || options.same_on_all_ranks)) {
    state->tensor = distribute_tensor(full, mesh, {Shard(dim)}, options);
  } else {
    // What is scattered is the value of a mesh's first rank, not of the lowest.
    auto ascending = ranks;
    std::sort(ascending.begin(), ascending.end());
    const auto whole = distribute_tensor(
        full.detach(), mesh_of(spec, ascending), {Replicate()}, options);
    if (several) {
      state->chunks = local_chunks(whole, spec, dim);
    } else {
      state->tensor = detail::own_parts(whole, mesh, dim);
      state->tensor.set_requires_grad(full.requires_grad());
    }
  }
  ShardedTensor result;
  result.state_ = std::move(state);
  return result;
}

ShardedTensor ShardedTensor::from_local_shards(
    at::TensorList shards, SizesRef size, const ChunkShardingSpec& spec) {
  TORCH_CHECK_VALUE(
      !detail::names_a_rank_twice(spec),
      "[ShardedTensor::from_local_shards] a rank may hold one chunk, but ",
      spec.str(),
      " names a rank twice");
  const int64_t dim = checked_dim(spec, static_cast<int64_t>(size.size()));
  const auto mesh = mesh_of(spec, ranks_of(spec));
  auto state = std::make_shared<State>();
  state->spec = spec;
  state->sizes = Sizes(size);
  state->tensor = DTensor::from_local(
      detail::by_position(mesh, shards, "ShardedTensor::from_local_shards"),
      mesh,
      {Shard(dim)},
      {.shape = Sizes(size)});
  ShardedTensor result;
  result.state_ = std::move(state);
  return result;
}

bool ShardedTensor::defined() const { return state_ != nullptr; }

SizesRef ShardedTensor::size() const { return state_->sizes; }

int64_t ShardedTensor::size(int64_t dim) const {
  const auto count = static_cast<int64_t>(state_->sizes.size());
  TORCH_CHECK_INDEX(
      -count <= dim && dim < count,
      "[ShardedTensor::size] dim ",
      dim,
      " is out of range for ",
      count,
      " dimensions");
  return state_->sizes[dim < 0 ? dim + count : dim];
}

const ChunkShardingSpec* ShardedTensor::sharding_spec() const {
  return state_->spec.has_value() ? &*state_->spec : nullptr;
}

std::vector<LocalShard> ShardedTensor::local_shards() const {
  if (!state_->tensor.defined()) {
    return state_->chunks;
  }
  const auto& meta = detail::distributed_meta(state_->tensor);
  const auto& mesh = meta.spec->mesh;
  std::vector<LocalShard> shards;
  for (const int64_t position : detail::positions_by_rank(mesh)) {
    const int64_t rank = mesh.all_ranks()[position];
    Sizes offsets;
    for (int64_t d = 0; d < meta.spec->dim(); ++d) {
      offsets.push_back(
          local_range(
              meta.spec->sizes[d], d, mesh, meta.spec->placements, position)
              .begin);
    }
    shards.push_back(
        {DTensor(state_->tensor).shard(rank), std::move(offsets), rank});
  }
  return shards;
}

at::Tensor ShardedTensor::local_tensor() const {
  auto shards = local_shards();
  TORCH_CHECK_VALUE(
      shards.size() == 1,
      "[ShardedTensor::local_tensor] ",
      shards.size(),
      " shards live in this process, not one: use local_shards()");
  return std::move(shards[0].tensor);
}

DTensor ShardedTensor::dtensor() const {
  TORCH_CHECK_VALUE(
      state_->tensor.defined(),
      "[ShardedTensor::dtensor] ",
      state_->spec->str(),
      " gives a rank several chunks, a distributed tensor has one a rank: name "
      "each rank once");
  return DTensor(state_->tensor);
}

ShardedTensor ShardedTensor::grad() const {
  const auto& grad = dtensor().grad();
  return grad.defined() ? ShardedTensor(grad) : ShardedTensor();
}

ShardedTensor& ShardedTensor::requires_grad_(bool requires_grad) {
  dtensor().set_requires_grad(requires_grad);
  return *this;
}

std::ostream& operator<<(std::ostream& out, const ShardedTensor& tensor) {
  if (!tensor.defined()) {
    return out << "ShardedTensor()";
  }
  out << "ShardedTensor(" << tensor.size() << ", ";
  if (tensor.sharding_spec() != nullptr) {
    return out << tensor.sharding_spec()->str() << ")";
  }
  return out << to_string(tensor.dtensor().placements()) << " on "
             << tensor.dtensor().mesh() << ")";
}

}  // namespace tessera
