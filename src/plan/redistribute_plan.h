// A redistribution as a list of steps, each on one mesh dimension.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/spec.h"

namespace tessera::detail {

struct Step {
  enum class Kind : uint8_t {
    AllGather,      // S(dim) -> R
    AllToAll,       // S(dim) -> S(to_dim)
    AllReduce,      // P -> R
    ReduceScatter,  // P -> S(to_dim)
    Slice,          // R -> S(to_dim), local
    ToPartial,      // R -> P, local: the first rank keeps the value
  };
  Kind kind;
  int64_t mesh_dim;
  // The placements before and after. Only mesh_dim's data changes; of the other
  // mesh dimensions some may be renamed where that changes nothing (see
  // plan_redistribution).
  Placements before;
  Placements after;

  // all_gather(dim=0, mesh_dim=1)
  std::string str() const;
};

struct RedistributePlan {
  std::vector<Step> steps;
  double cost = 0;  // microseconds, by plan/cost.h

  // "all_gather(dim=0, mesh_dim=0); slice(dim=1, mesh_dim=0)"; "nothing"
  std::string str() const;
};

// The cheapest steps from one layout of a tensor to another. Every intermediate
// layout keeps the nesting order of shards: a mesh dimension starts or stops to
// shard a tensor dimension only while no later mesh dimension shards it. Where
// one step does, the plan is that step. A mesh dimension that is the same
// before and after is left as it is, unless it has to make way for an earlier
// one. Pending reductions are carried out in the order of the mesh dimensions,
// so that their rounding does not depend on the layout that is asked for.
//
// What holds the same data is renamed without a step: any placement on a mesh
// dimension of size 1, and a MaskPartial, which is a sum with many zeros, as
// P(sum). The first step's `before` is `from`, the last step's `after` is `to`;
// with no steps at all the shards of `from` are those of `to`.
//
// Placements must be normalised. Throws c10::NotImplementedError for a
// MaskPartial that is not there already: only a lookup makes one.
RedistributePlan plan_redistribution(
    const DeviceMesh& mesh,
    SizesRef sizes,
    int64_t element_size,
    PlacementsRef from,
    PlacementsRef to);

// Whether plan_redistribution has a plan: false where `to` holds a MaskPartial
// that `from` does not, or pending reductions whose order would matter.
bool can_redistribute(
    const DeviceMesh& mesh, PlacementsRef from, PlacementsRef to);

// The cost of plan_redistribution's plan, without the plan where that is
// cheaper to find (on 1-d meshes). Requires: can_redistribute().
double redistribution_cost(const Spec& from, PlacementsRef to);

// plan_redistribution for `from`, planned once and remembered. Each thread
// remembers for itself, up to 1024 plans: nothing is locked.
std::shared_ptr<const RedistributePlan> cached_redistribution(
    const Spec& from, PlacementsRef to);

}  // namespace tessera::detail
