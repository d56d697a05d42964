// Plans that were made before, by value: (mesh, sizes, element size, from, to).
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/hash.h"
#include "plan/redistribute_plan.h"

namespace tessera::detail {
namespace {

using PlanPtr = std::shared_ptr<const RedistributePlan>;

// What is asked: nothing is copied to look a plan up.
struct Asked {
  const DeviceMesh& mesh;
  SizesRef sizes;
  int64_t element_size;
  PlacementsRef from;
  PlacementsRef to;
};

// What is kept. By value, not by the spec's address: an address is used again
// when its spec has gone.
struct Kept {
  DeviceMesh mesh;
  Sizes sizes;
  int64_t element_size;
  Placements from;
  Placements to;

  explicit Kept(const Asked& asked)
      : mesh(asked.mesh),
        sizes(asked.sizes.begin(), asked.sizes.end()),
        element_size(asked.element_size),
        from(asked.from.begin(), asked.from.end()),
        to(asked.to.begin(), asked.to.end()) {}
};

struct KeyHash {
  using is_transparent = void;
  template <typename Key>
  size_t operator()(const Key& key) const {
    uint64_t hash = hash_combine(key.mesh.hash(), SizesRef(key.sizes));
    hash = hash_combine(hash, static_cast<uint64_t>(key.element_size));
    for (const PlacementsRef placements :
         {PlacementsRef(key.from), PlacementsRef(key.to)}) {
      for (const Placement& placement : placements) {
        hash = hash_combine(hash, hash_value(placement));
      }
    }
    return hash;
  }
};

struct KeyEqual {
  using is_transparent = void;
  template <typename A, typename B>
  bool operator()(const A& a, const B& b) const {
    return a.mesh == b.mesh && a.element_size == b.element_size &&
           SizesRef(a.sizes) == SizesRef(b.sizes) &&
           PlacementsRef(a.from) == PlacementsRef(b.from) &&
           PlacementsRef(a.to) == PlacementsRef(b.to);
  }
};

// Two generations: a plan found in the old one moves to the young one; when the
// young one is full it becomes the old one, and what was not asked for since is
// gone. That is nearly LRU, without a list to keep.
class PlanCache {
 public:
  PlanPtr find(const Asked& asked) {
    if (const auto found = young_.find(asked); found != young_.end()) {
      return found->second;
    }
    if (const auto found = old_.find(asked); found != old_.end()) {
      PlanPtr plan = found->second;
      keep(asked, plan);
      return plan;
    }
    return nullptr;
  }

  void keep(const Asked& asked, PlanPtr plan) {
    if (young_.size() >= kGeneration) {
      old_ = std::exchange(young_, {});
    }
    young_.emplace(Kept(asked), std::move(plan));
  }

 private:
  static constexpr size_t kGeneration = 512;
  using Map = std::unordered_map<Kept, PlanPtr, KeyHash, KeyEqual>;

  Map young_;
  Map old_;
};

}  // namespace

std::shared_ptr<const RedistributePlan> cached_redistribution(
    const Spec& from, PlacementsRef to) {
  thread_local PlanCache cache;
  const Asked asked{
      from.mesh,
      from.sizes,
      static_cast<int64_t>(c10::elementSize(from.shard_dtype)),
      from.placements,
      to};
  PlanPtr plan = cache.find(asked);
  if (plan == nullptr) {
    plan = std::make_shared<const RedistributePlan>(plan_redistribution(
        asked.mesh, asked.sizes, asked.element_size, asked.from, asked.to));
    cache.keep(asked, plan);
  }
  return plan;
}

}  // namespace tessera::detail
