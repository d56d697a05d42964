// Plans on meshes of several dimensions against a search that tries everything.
#include "plan/step_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "plan/cost.h"
#include "tessera/shard_math.h"
#include "tests/core/scoped_process_context.h"

namespace tessera::detail {
namespace step_search_test {

using Shape = std::vector<int64_t>;

// What the transitions of one mesh dimension are, said a second time and in
// another way than the library says it.
bool legal_kind(Step::Kind kind, const Placement& from, const Placement& to) {
  switch (kind) {
    case Step::Kind::AllGather:
      return from.is_shard() && to.is_replicate();
    case Step::Kind::AllToAll:
      return from.is_shard() && to.is_shard() && from != to;
    case Step::Kind::AllReduce:
      return from.is_partial() && to.is_replicate();
    case Step::Kind::ReduceScatter:
      return from.is_partial() && to.is_shard();
    case Step::Kind::Slice:
      return from.is_replicate() && to.is_shard();
    case Step::Kind::ToPartial:
      return from.is_replicate() && to.kind() == Placement::Kind::Partial;
  }
  return false;
}

constexpr Step::Kind kKinds[] = {
    Step::Kind::AllGather,
    Step::Kind::AllToAll,
    Step::Kind::AllReduce,
    Step::Kind::ReduceScatter,
    Step::Kind::Slice,
    Step::Kind::ToPartial};

// The mesh dimensions that cut `dim`, in order.
std::vector<size_t> cutters(PlacementsRef placements, int64_t dim) {
  std::vector<size_t> found;
  for (size_t m = 0; m < placements.size(); ++m) {
    if (placements[m].is_shard(dim)) {
      found.push_back(m);
    }
  }
  return found;
}

// A tensor dimension's cuts may only change at their innermost end.
bool legal_nesting(PlacementsRef before, PlacementsRef after, int64_t ndim) {
  for (int64_t d = 0; d < ndim; ++d) {
    std::vector<size_t> few = cutters(before, d);
    std::vector<size_t> many = cutters(after, d);
    if (few.size() > many.size()) {
      std::swap(few, many);
    }
    if (!std::equal(few.begin(), few.end(), many.begin())) {
      return false;
    }
  }
  return true;
}

int64_t first_shard_bytes(
    const DeviceMesh& mesh, SizesRef sizes, PlacementsRef placements) {
  int64_t bytes = 4;
  for (const int64_t n : local_shape(sizes, mesh, placements, 0)) {
    bytes *= n;
  }
  return bytes;
}

struct LocalError {
  DeviceMesh mesh;
  Sizes sizes;
  Placements from;
  Placements to;

  std::string str() const {
    return mesh.str() + " " + to_string(from) + "->" + to_string(to);
  }
};

// All layouts that a plan may pass through.
std::vector<Placements> all_states(const LocalError& p) {
  std::vector<Placements> states{{}};
  for (size_t m = 0; m < p.from.size(); ++m) {
    std::vector<Placement> options{p.from[m]};
    bool stays = p.from[m] == p.to[m];
    for (size_t e = 0; e < m && stays; ++e) {
      const bool changes = p.from[e] != p.to[e];
      const bool meets = p.from[m].is_shard() &&
                         (p.from[e] == p.from[m] || p.to[e] == p.from[m]);
      stays = !(changes && meets);
    }
    if (!stays) {
      options.push_back(p.to[m]);
      options.push_back(Replicate());
      for (int64_t d = 0; d < static_cast<int64_t>(p.sizes.size()); ++d) {
        if (!cutters(p.from, d).empty() || !cutters(p.to, d).empty()) {
          options.push_back(Shard(d));
        }
      }
    }
    std::vector<Placements> longer;
    for (const Placements& state : states) {
      for (size_t i = 0; i < options.size(); ++i) {
        if (std::find(options.begin(), options.begin() + i, options[i]) ==
            options.begin() + i) {
          longer.push_back(state);
          longer.back().push_back(options[i]);
        }
      }
    }
    states = std::move(longer);
  }
  return states;
}

// The cost of the one step between two layouts; infinite if there is none.
double edge(const LocalError& p, const Placements& a, const Placements& b) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  size_t changed = 0;
  size_t m = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) {
      ++changed;
      m = i;
    }
  }
  const auto ndim = static_cast<int64_t>(p.sizes.size());
  if (changed != 1 || !legal_nesting(a, b, ndim) || !reductions_commute(b)) {
    return kNone;
  }
  // Reductions are carried out in the order of the mesh dimensions.
  for (size_t e = 0; e < m && a[m].is_partial(); ++e) {
    if (a[e].is_partial() && a[e] != p.to[e]) {
      return kNone;
    }
  }
  for (const Step::Kind kind : kKinds) {
    if (legal_kind(kind, a[m], b[m])) {
      return step_cost(
          kind, first_shard_bytes(p.mesh, p.sizes, a), p.mesh.shape()[m]);
    }
  }
  return kNone;
}

// Bellman and Ford's: relax every edge until nothing changes.
double brute_force(const LocalError& p) {
  const std::vector<Placements> states = all_states(p);
  std::vector<double> cost(
      states.size(), std::numeric_limits<double>::infinity());
  std::vector<std::vector<double>> edges(states.size());
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i] == p.from) {
      cost[i] = 0;
    }
    for (const Placements& to : states) {
      edges[i].push_back(edge(p, states[i], to));
    }
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < states.size(); ++i) {
      for (size_t j = 0; j < states.size(); ++j) {
        if (cost[i] + edges[i][j] < cost[j] - 1e-9) {
          cost[j] = cost[i] + edges[i][j];
          changed = true;
        }
      }
    }
  }
  return cost[std::find(states.begin(), states.end(), p.to) - states.begin()];
}

void check(const LocalError& p) {
  const RedistributePlan plan =
      plan_redistribution(p.mesh, p.sizes, 4, p.from, p.to);
  double cost = 0;
  Placements at = p.from;
  for (const Step& step : plan.steps) {
    EXPECT_EQ(step.before, at) << p.str() << ": " << plan.str();
    Placements after = step.before;
    after[step.mesh_dim] = step.after[step.mesh_dim];
    EXPECT_EQ(after, step.after) << p.str() << ": " << plan.str();
    EXPECT_TRUE(legal_kind(
        step.kind, step.before[step.mesh_dim], step.after[step.mesh_dim]))
        << p.str() << ": " << plan.str();
    EXPECT_TRUE(legal_nesting(
        step.before, step.after, static_cast<int64_t>(p.sizes.size())))
        << p.str() << ": " << plan.str();
    EXPECT_TRUE(reductions_commute(step.after)) << p.str();
    cost += step_cost(
        step.kind,
        first_shard_bytes(p.mesh, p.sizes, step.before),
        p.mesh.shape()[step.mesh_dim]);
    at = step.after;
  }
  EXPECT_EQ(at, p.to) << p.str() << ": " << plan.str();
  EXPECT_NEAR(plan.cost, cost, 1e-6) << p.str();
  if (edge(p, p.from, p.to) < std::numeric_limits<double>::infinity()) {
    EXPECT_EQ(plan.steps.size(), 1u) << p.str() << ": " << plan.str();
  } else {
    EXPECT_NEAR(plan.cost, brute_force(p), 1e-6)
        << p.str() << ": " << plan.str();
  }
}

void check_random(const Shape& shape, const Shape& sizes, int count) {
  int64_t ranks = 1;
  for (const int64_t n : shape) {
    ranks *= n;
  }
  const ScopedProcessContext world(ranks);
  const DeviceMesh mesh = init_device_mesh("cpu", shape);
  std::mt19937 random(7);
  const auto placements = [&] {
    for (;;) {
      Placements drawn;
      for (size_t m = 0; m < shape.size(); ++m) {
        switch (random() % 6) {
          case 0:
            drawn.push_back(Replicate());
            break;
          case 1:
            drawn.push_back(Partial(random() % 2 ? "sum" : "max"));
            break;
          default:
            drawn.push_back(Shard(random() % sizes.size()));
        }
      }
      if (reductions_commute(drawn)) {
        return drawn;
      }
    }
  };
  for (int i = 0; i < count; ++i) {
    check(
        {mesh, Sizes(sizes.begin(), sizes.end()), placements(), placements()});
  }
}

TEST(StepSearch, CheapestOfAll_2x2) {
  check_random({2, 2}, {16, 8}, 300);
  check_random({2, 2}, {256, 3, 512}, 300);
}

TEST(StepSearch, CheapestOfAll_2x3_Uneven) {
  check_random({2, 3}, {5, 700}, 300);
  check_random({2, 3}, {1, 4096, 7}, 300);
}

TEST(StepSearch, CheapestOfAll_2x2x2) {
  check_random({2, 2, 2}, {64, 512}, 60);
  check_random({2, 2, 2}, {8, 5, 4096}, 60);
}

TEST(StepSearch, FreeToChange) {
  const Placements nested{Shard(0), Shard(0)};
  EXPECT_FALSE(free_to_change(nested, 0, Replicate()));
  EXPECT_FALSE(free_to_change(nested, 0, Shard(1)));
  EXPECT_TRUE(free_to_change(nested, 1, Replicate()));
  const Placements apart{Replicate(), Shard(0)};
  EXPECT_FALSE(free_to_change(apart, 0, Shard(0)));
  EXPECT_TRUE(free_to_change(apart, 0, Shard(1)));
}

}  // namespace step_search_test
}  // namespace tessera::detail
