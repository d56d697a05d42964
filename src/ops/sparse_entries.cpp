#include "ops/sparse_entries.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>

#include <algorithm>

#include "dispatch/copied_view.h"
#include "dispatch/tensor.h"

namespace tessera::detail {

namespace {

bool shards_rows(const Placement& placement) { return placement.is_shard(0); }

// Whether two positions have the same coordinates on the mesh dimensions that
// shard rows (`rows`), or on the others.
bool agree_on(const Spec& spec, int64_t a, int64_t b, bool rows) {
  for (int64_t m = 0; m < spec.mesh.ndim(); ++m) {
    if (shards_rows(spec.placements[m]) == rows &&
        spec.mesh.coordinate(a, m) != spec.mesh.coordinate(b, m)) {
      return false;
    }
  }
  return true;
}

EntryLayout whole_rows(const Spec& spec) {
  EntryLayout layout{spec.mesh, spec.placements, {}};
  for (const int64_t position : spec.mesh.local_positions()) {
    layout.sources.push_back({position});
  }
  return layout;
}

bool has_whole_rows(const Spec& spec) {
  return std::none_of(
      spec.placements.begin(), spec.placements.end(), shards_rows);
}

at::Tensor shifted_rows(const at::Tensor& indices, int64_t offset) {
  if (offset == 0) {
    return indices;
  }
  auto shifted = indices.clone();
  shifted.select(0, 0).add_(offset);
  return shifted;
}

}  // namespace

bool has_entry_layout(const Spec& spec) {
  const auto here = static_cast<int64_t>(spec.mesh.local_positions().size());
  return has_whole_rows(spec) || here <= spec.mesh.size();
}

EntryLayout entry_layout(const Spec& spec) {
  if (has_whole_rows(spec)) {
    return whole_rows(spec);
  }
  const DeviceMesh& mesh = spec.mesh;
  TORCH_CHECK_NOT_IMPLEMENTED(
      has_entry_layout(spec),
      "the entries of a sparse tensor over ",
      mesh.str(),
      ", a slice of a mesh, are not supported in a simulated world: use a mesh "
      "of its own");
  const auto local = mesh.local_positions();
  const int64_t here = local.empty() ? 0 : local[0];
  // Of a slice, the copy that lives here.
  const auto copy = mesh.ranks(mesh.all_ranks()[here]);
  std::vector<int64_t> ranks;
  std::vector<int64_t> shape;
  Placements placements;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (!shards_rows(spec.placements[m])) {
      shape.push_back(mesh.size(m));
      placements.push_back(spec.placements[m]);
    }
  }
  if (shape.empty()) {
    shape.push_back(1);
    placements.push_back(Replicate());
  }
  decltype(EntryLayout::sources) sources;
  for (const int64_t rank : copy) {
    const int64_t p = mesh.position_of(rank);
    if (!agree_on(spec, p, here, /*rows=*/true)) {
      continue;
    }
    ranks.push_back(rank);
    c10::SmallVector<int64_t, 8> same;
    for (const int64_t q : local) {
      if (agree_on(spec, p, q, /*rows=*/false)) {
        same.push_back(q);
      }
    }
    std::sort(same.begin(), same.end(), [&](int64_t a, int64_t b) {
      return rows_of(spec, a).begin < rows_of(spec, b).begin;
    });
    if (!same.empty()) {
      sources.push_back(std::move(same));
    }
  }
  return {
      DeviceMesh(mesh.device_type(), ranks, shape),
      std::move(placements),
      std::move(sources)};
}

bool is_layout_of(const EntryLayout& layout, const Spec& spec) {
  return spec.mesh == layout.mesh && spec.placements == layout.placements;
}

Range rows_of(const Spec& spec, int64_t position) {
  return local_range(spec.sizes[0], 0, spec.mesh, spec.placements, position);
}

at::Tensor entries_in(const at::Tensor& rows, const Range& range) {
  return rows.ge(range.begin)
      .logical_and_(rows.lt(range.begin + range.size))
      .nonzero()
      .squeeze(1);
}

const at::Tensor& shard_at(const at::Tensor& tensor, int64_t position) {
  const auto local = distributed_meta(tensor).spec->mesh.local_positions();
  return current_shards(
      tensor)[std::find(local.begin(), local.end(), position) - local.begin()];
}

at::Tensor make_sparse(
    const at::Tensor& indices,
    const at::Tensor& values,
    SizesRef sizes,
    bool is_coalesced) {
  return at::_sparse_coo_tensor_unsafe(
      indices,
      values,
      sizes,
      values.options().layout(at::kSparse),
      is_coalesced);
}

void check_rows_alone(const at::Tensor& shard, const Spec& spec) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      shard.sparse_dim() == 1,
      "the entries of ",
      spec.str(),
      ", a sparse tensor with ",
      shard.sparse_dim(),
      " sparse dimensions and sharded rows, are not supported: expected one");
}

at::Tensor entries_of(const at::Tensor& self) {
  current_shards(self);
  const Spec& spec = *distributed_meta(self).spec;
  const auto layout = entry_layout(spec);
  if (is_layout_of(layout, spec)) {
    return self;
  }
  Shards shards;
  bool copied = false;
  for (const auto& sources : layout.sources) {
    std::vector<at::Tensor> indices;
    std::vector<at::Tensor> values;
    bool is_coalesced = true;
    for (const int64_t position : sources) {
      const auto& shard = shard_at(self, position);
      check_rows_alone(shard, spec);
      indices.push_back(
          shifted_rows(shard._indices(), rows_of(spec, position).begin));
      values.push_back(shard._values());
      is_coalesced &= shard.is_coalesced();
    }
    const bool only = sources.size() == 1;
    copied |= !only;
    Sizes sizes(shard_at(self, sources[0]).sizes());
    sizes[0] = spec.sizes[0];
    shards.push_back(make_sparse(
        only ? indices[0] : at::cat(indices, 1),
        only ? values[0] : at::cat(values),
        sizes,
        is_coalesced));
  }
  return make_distributed(
      Spec::make(layout.mesh, layout.placements, spec.sizes, spec.dtype),
      std::move(shards),
      copied ? frozen_origin(self) : ViewOrigin());
}

at::Tensor bring_home(
    const at::Tensor& entries, const Spec& like, const EntryLayout& layout) {
  Shards shards(like.mesh.local_positions().size());
  const auto local = like.mesh.local_positions();
  for (size_t q = 0; q < layout.sources.size(); ++q) {
    const auto& shard = current_shards(entries)[q];
    check_rows_alone(shard, like);
    const auto indices = shard._indices();
    int64_t taken = 0;
    for (const int64_t position : layout.sources[q]) {
      const auto range = rows_of(like, position);
      const auto chosen = entries_in(indices.select(0, 0), range);
      const bool all = chosen.numel() == indices.size(1);
      Sizes sizes(shard.sizes());
      sizes[0] = range.size;
      const auto slot =
          std::find(local.begin(), local.end(), position) - local.begin();
      shards[slot] = make_sparse(
          shifted_rows(
              all ? indices : indices.index_select(1, chosen), -range.begin),
          all ? shard._values() : shard._values().index_select(0, chosen),
          sizes,
          shard.is_coalesced());
      taken += chosen.numel();
    }
    TORCH_CHECK_INDEX(
        taken == indices.size(1),
        "some of the entries of a sparse tensor are in rows that this process "
        "does not hold of ",
        like.str());
  }
  return make_distributed(
      Spec::make(
          like.mesh,
          like.placements,
          distributed_meta(entries).spec->sizes,
          distributed_meta(entries).spec->dtype),
      std::move(shards));
}

}  // namespace tessera::detail
