// The cache of plans: one a thread, so that the hot path takes no lock, and of
// fixed size, so that a server that sees a new shape at every call does not
// grow.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "dispatch/call_key.h"
#include "dispatch/op_plan.h"

namespace tessera::detail {

// Sees each op that is run by its rule, before it runs.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void on_op(const OpInfo& op, c10::ArrayRef<c10::IValue> args) = 0;
};

class PlanCache {
 public:
  static constexpr size_t kSets = 512;
  static constexpr size_t kWays = 4;

  // This thread's.
  [[gnu::hot]] static PlanCache& local();

  // nullptr on a miss.
  [[gnu::hot]] std::shared_ptr<OpPlan> find(const CallKey& key);
  // The plan if it is known and direct, nullptr otherwise. It lives until the
  // next plan is inserted. Counts no miss: such a call comes to find() next.
  [[gnu::hot]] const OpPlan* find_direct(const CallKey& key);
  // Replaces the oldest plan of the key's set if that is full.
  void insert(const CallKey& key, std::shared_ptr<OpPlan> plan);
  void clear();

  struct Counts {
    uint64_t hits = 0;
    uint64_t misses = 0;
  };
  Counts counts() const { return counts_; }

  // Who watches this thread's ops; here, where every op comes by anyhow.
  OpObserver* observer = nullptr;

 private:
  struct Entry {
    uint64_t hash = 0;
    c10::SmallVector<uint64_t, 5> words;  // in place for most calls
    std::shared_ptr<OpPlan> plan;
  };
  struct Set {
    std::array<Entry, kWays> ways;
    uint8_t next = 0;
  };
  [[gnu::hot]] const Entry* entry(const CallKey& key) const;

  std::vector<Set> sets_ = std::vector<Set>(kSets);
  Counts counts_;
};

}  // namespace tessera::detail
