#include "plan/step_search.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/cost.h"

namespace tessera::detail {
namespace {

using CandidatePlacements = c10::SmallVector<Placement, 6>;

void add_once(CandidatePlacements& candidates, const Placement& placement) {
  if (std::find(candidates.begin(), candidates.end(), placement) ==
      candidates.end()) {
    candidates.push_back(placement);
  }
}

// Whether mesh dimension `m`, which is the same first and last, shards a tensor
// dimension that an earlier mesh dimension starts or stops to shard.
bool in_the_way(PlacementsRef from, PlacementsRef to, size_t m) {
  if (!from[m].is_shard()) {
    return false;
  }
  for (size_t earlier = 0; earlier < m; ++earlier) {
    if (from[earlier] != to[earlier] &&
        (from[earlier].is_shard(from[m].dim()) ||
         to[earlier].is_shard(from[m].dim()))) {
      return true;
    }
  }
  return false;
}

// What each mesh dimension may hold on the way. Its first and last placements
// are always among them.
std::vector<CandidatePlacements> candidates_of(
    PlacementsRef from, PlacementsRef to) {
  CandidatePlacements shards;
  for (const PlacementsRef placements : {from, to}) {
    for (const Placement& placement : placements) {
      if (placement.is_shard()) {
        add_once(shards, placement);
      }
    }
  }
  std::vector<CandidatePlacements> candidates(from.size());
  for (size_t m = 0; m < from.size(); ++m) {
    add_once(candidates[m], from[m]);
    if (from[m] == to[m] && !in_the_way(from, to, m)) {
      continue;
    }
    add_once(candidates[m], to[m]);
    add_once(candidates[m], Replicate());
    for (const Placement& shard : shards) {
      add_once(candidates[m], shard);
    }
  }
  return candidates;
}

// States are numbered: the digits of a number, in the radix of each mesh
// dimension's candidates, say which of them it holds.
class StepSearch {
 public:
  StepSearch(
      const DeviceMesh& mesh,
      SizesRef sizes,
      int64_t element_size,
      PlacementsRef from,
      PlacementsRef to)
      : mesh_(mesh),
        sizes_(sizes),
        element_size_(element_size),
        candidates_(candidates_of(from, to)) {
    size_t count = 1;
    for (const CandidatePlacements& candidates : candidates_) {
      strides_.push_back(count);
      count *= candidates.size();
    }
    reached_.resize(count);
    from_ = number_of(from);
    to_ = number_of(to);
  }

  RedistributePlan run() {
    reached_[from_] = {0, 0, from_, 0};
    queue_.emplace(0.0, 0, from_);
    while (!queue_.empty()) {
      const auto [cost, steps, state] = queue_.top();
      queue_.pop();
      if (state == to_) {
        return plan();
      }
      if (cost > reached_[state].cost) {
        continue;
      }
      visit(state);
    }
    TORCH_INTERNAL_ASSERT(
        false,
        "no way from ",
        to_string(placements_of(from_)),
        " to ",
        to_string(placements_of(to_)));
  }

 private:
  struct Reached {
    double cost = std::numeric_limits<double>::infinity();
    int steps = 0;
    size_t by = 0;
    size_t mesh_dim = 0;
  };

  size_t number_of(PlacementsRef placements) const {
    size_t number = 0;
    for (size_t m = 0; m < placements.size(); ++m) {
      const auto found = std::find(
          candidates_[m].begin(), candidates_[m].end(), placements[m]);
      number += strides_[m] * (found - candidates_[m].begin());
    }
    return number;
  }

  size_t digit(size_t state, size_t m) const {
    return state / strides_[m] % candidates_[m].size();
  }

  Placements placements_of(size_t state) const {
    Placements placements;
    for (size_t m = 0; m < candidates_.size(); ++m) {
      placements.push_back(candidates_[m][digit(state, m)]);
    }
    return placements;
  }

  // Tries every step from `state`.
  void visit(size_t state) {
    const Reached& here = reached_[state];
    Placements placements = placements_of(state);
    const int64_t bytes =
        largest_shard_bytes(mesh_, sizes_, element_size_, placements);
    for (size_t m = 0; m < placements.size(); ++m) {
      const size_t own = digit(state, m);
      for (size_t c = 0; c < candidates_[m].size(); ++c) {
        const Placement& to = candidates_[m][c];
        const auto kind = single_step(placements[m], to);
        if (c == own || !kind || !free_to_change(placements, m, to)) {
          continue;
        }
        if (*kind == Step::Kind::ToPartial && !commutes(placements, m, to)) {
          continue;
        }
        if (placements[m].is_partial() && !next_to_reduce(state, m)) {
          continue;
        }
        const double cost =
            here.cost + step_cost(*kind, bytes, mesh_.shape()[m]);
        const size_t next = state + c * strides_[m] - own * strides_[m];
        Reached& there = reached_[next];
        if (std::tuple(cost, here.steps + 1) <
            std::tuple(there.cost, there.steps)) {
          there = {cost, here.steps + 1, state, m};
          queue_.emplace(cost, there.steps, next);
        }
      }
    }
  }

  // Whether no earlier mesh dimension has a reduction to do before this one's.
  // Sums are rounded: taken in one order, a value has the same bits in
  // whichever layout it ends up, and formulas that compare it with itself
  // (the backward of max) hold.
  bool next_to_reduce(size_t state, size_t m) const {
    for (size_t earlier = 0; earlier < m; ++earlier) {
      const Placement& now = candidates_[earlier][digit(state, earlier)];
      if (now.is_partial() && digit(state, earlier) != digit(to_, earlier)) {
        return false;
      }
    }
    return true;
  }

  static bool commutes(
      const Placements& placements, size_t m, const Placement& to) {
    Placements after = placements;
    after[m] = to;
    return reductions_commute(after);
  }

  // Reads the chain back from the goal.
  RedistributePlan plan() const {
    RedistributePlan plan;
    plan.cost = reached_[to_].cost;
    for (size_t state = to_; state != from_; state = reached_[state].by) {
      const size_t m = reached_[state].mesh_dim;
      Step step;
      step.mesh_dim = static_cast<int64_t>(m);
      step.before = placements_of(reached_[state].by);
      step.after = placements_of(state);
      step.kind = *single_step(step.before[m], step.after[m]);
      plan.steps.push_back(std::move(step));
    }
    std::reverse(plan.steps.begin(), plan.steps.end());
    return plan;
  }

  // By cost, then by steps, then by number: the same plan on every rank.
  using Entry = std::tuple<double, int, size_t>;

  const DeviceMesh& mesh_;
  SizesRef sizes_;
  int64_t element_size_;
  std::vector<CandidatePlacements> candidates_;
  c10::SmallVector<size_t, 4> strides_;
  std::vector<Reached> reached_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  size_t from_ = 0;
  size_t to_ = 0;
};

}  // namespace

std::optional<Step::Kind> single_step(
    const Placement& from, const Placement& to) {
  if (from.is_replicate()) {
    if (to.is_shard()) {
      return Step::Kind::Slice;
    }
    if (to.kind() == Placement::Kind::Partial) {
      return Step::Kind::ToPartial;
    }
  } else if (from.is_shard()) {
    if (to.is_replicate()) {
      return Step::Kind::AllGather;
    }
    if (to.is_shard() && to.dim() != from.dim()) {
      return Step::Kind::AllToAll;
    }
  } else {
    if (to.is_replicate()) {
      return Step::Kind::AllReduce;
    }
    if (to.is_shard()) {
      return Step::Kind::ReduceScatter;
    }
  }
  return std::nullopt;
}

bool free_to_change(PlacementsRef placements, size_t m, const Placement& to) {
  const Placement& from = placements[m];
  for (size_t later = m + 1; later < placements.size(); ++later) {
    if (placements[later].is_shard() &&
        (from.is_shard(placements[later].dim()) ||
         to.is_shard(placements[later].dim()))) {
      return false;
    }
  }
  return true;
}

RedistributePlan search_steps(
    const DeviceMesh& mesh,
    SizesRef sizes,
    int64_t element_size,
    PlacementsRef from,
    PlacementsRef to) {
  return StepSearch(mesh, sizes, element_size, from, to).run();
}

}  // namespace tessera::detail
