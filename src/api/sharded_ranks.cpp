#include "api/sharded_ranks.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "dispatch/tensor.h"
#include "kernels/huge_pages.h"
#include "tessera/spec.h"

namespace tessera::detail {

bool names_a_rank_twice(const ChunkShardingSpec& spec) {
  c10::SmallVector<int64_t, 64> ranks;
  for (const auto& placement : spec.placements) {
    ranks.push_back(placement.rank);
  }
  std::sort(ranks.begin(), ranks.end());
  return std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end();
}

std::vector<int64_t> positions_by_rank(const DeviceMesh& mesh) {
  const auto local = mesh.local_positions();
  std::vector<int64_t> positions(local.begin(), local.end());
  std::sort(positions.begin(), positions.end(), [&](int64_t a, int64_t b) {
    return mesh.all_ranks()[a] < mesh.all_ranks()[b];
  });
  return positions;
}

std::vector<size_t> places_by_rank(const DeviceMesh& mesh) {
  const auto ordered = positions_by_rank(mesh);
  std::vector<size_t> places;
  for (const int64_t position : mesh.local_positions()) {
    places.push_back(static_cast<size_t>(
        std::find(ordered.begin(), ordered.end(), position) - ordered.begin()));
  }
  return places;
}

std::vector<at::Tensor> by_position(
    const DeviceMesh& mesh, at::TensorList by_rank, const char* caller) {
  const auto places = places_by_rank(mesh);
  TORCH_CHECK_VALUE(
      places.size() == by_rank.size(),
      "[",
      caller,
      "] expected one tensor for each of the ",
      places.size(),
      " ranks of the mesh that live in this process, but ",
      by_rank.size(),
      " were given");
  std::vector<at::Tensor> ordered;
  ordered.reserve(places.size());
  for (const size_t place : places) {
    ordered.push_back(by_rank[place]);
  }
  return ordered;
}

at::Tensor own_parts(
    const DTensor& replicated, const DeviceMesh& mesh, int64_t dim) {
  const Placements cut{Shard(dim)};
  Shards shards;
  for (const int64_t position : mesh.local_positions()) {
    const auto whole = replicated.shard(mesh.all_ranks()[position]);
    shards.push_back(copy_on_huge_pages(cut_shard(whole, mesh, cut, position)));
  }
  const auto& sizes = replicated.spec()->sizes;
  return make_distributed(
      Spec::make(mesh, cut, sizes, replicated.spec()->dtype),
      std::move(shards));
}

}  // namespace tessera::detail
