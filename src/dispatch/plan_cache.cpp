#include "dispatch/plan_cache.h"

namespace tessera::detail {

namespace {

size_t set_of(const CallKey& key) {
  return (key.hash() >> 32) % PlanCache::kSets;
}

}  // namespace

PlanCache& PlanCache::local() {
  // A pointer: asking whether an object of a thread is there takes longer.
  thread_local PlanCache* known = nullptr;
  if (C10_UNLIKELY(known == nullptr)) {
    thread_local PlanCache cache;
    known = &cache;
  }
  return *known;
}

const PlanCache::Entry* PlanCache::entry(const CallKey& key) const {
  for (const Entry& entry : sets_[set_of(key)].ways) {
    if (entry.hash == key.hash() && entry.plan != nullptr &&
        key.words() == c10::ArrayRef<uint64_t>(entry.words)) {
      return &entry;
    }
  }
  return nullptr;
}

std::shared_ptr<OpPlan> PlanCache::find(const CallKey& key) {
  const Entry* const known = entry(key);
  ++(known != nullptr ? counts_.hits : counts_.misses);
  return known != nullptr ? known->plan : nullptr;
}

const OpPlan* PlanCache::find_direct(const CallKey& key) {
  const Entry* const known = entry(key);
  if (known == nullptr || !known->plan->direct) {
    return nullptr;
  }
  ++counts_.hits;
  return known->plan.get();
}

void PlanCache::insert(const CallKey& key, std::shared_ptr<OpPlan> plan) {
  Set& set = sets_[set_of(key)];
  Entry& entry = set.ways[set.next];
  set.next = (set.next + 1) % kWays;
  entry.hash = key.hash();
  entry.words.assign(key.words().begin(), key.words().end());
  entry.plan = std::move(plan);
}

void PlanCache::clear() { sets_.assign(kSets, Set()); }

}  // namespace tessera::detail
