#include "plan/redistribute_plan.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <utility>

#include "plan/cost.h"
#include "plan/step_search.h"

namespace tessera::detail {
namespace {

// The tensor dimension that a step takes from or gives to its mesh dimension.
int64_t cut_by(const Placement& placement) {
  TORCH_INTERNAL_ASSERT(placement.is_shard());
  return placement.dim();
}

const char* name_of(Step::Kind kind) {
  static constexpr std::array kNames{
      "all_gather",
      "all_to_all",
      "all_reduce",
      "reduce_scatter",
      "slice",
      "to_partial"};
  return kNames.at(static_cast<size_t>(kind));
}

// Whether mesh dimension `m` holds the same data as `from` and as `to`.
bool same_data(int64_t group, const Placement& from, const Placement& to) {
  if (group == 1 || from == to) {
    return true;
  }
  return from.kind() == Placement::Kind::MaskPartial &&
         to == Partial(ReduceOp::Sum);
}

void check_reachable(
    const DeviceMesh& mesh, PlacementsRef from, PlacementsRef to) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      can_redistribute(mesh, from, to),
      "[redistribute] cannot go from ",
      to_string(from),
      " to ",
      to_string(to),
      ": only a lookup makes a MaskPartial, and pending reductions on several "
      "mesh dimensions must commute; redistribute to Replicate, Shard or "
      "Partial of one kind instead");
}

// `from` as the search sees it: renamed to `to` where that needs no step, and
// with pending sums that are one kind of thing.
Placements renamed(
    const DeviceMesh& mesh, PlacementsRef from, PlacementsRef to) {
  Placements placements(from.begin(), from.end());
  for (size_t m = 0; m < placements.size(); ++m) {
    if (mesh.shape()[m] == 1) {
      placements[m] = Replicate();
    } else if (
        placements[m].kind() == Placement::Kind::MaskPartial &&
        placements[m] != to[m]) {
      placements[m] = Partial(ReduceOp::Sum);
    }
  }
  return placements;
}

// `to` with what the search need not see taken out.
Placements without_unit_dims(const DeviceMesh& mesh, PlacementsRef to) {
  Placements placements(to.begin(), to.end());
  for (size_t m = 0; m < placements.size(); ++m) {
    if (mesh.shape()[m] == 1) {
      placements[m] = Replicate();
    }
  }
  return placements;
}

// The kinds of the one or two steps between the placements of one mesh
// dimension: there is none between a shard and a reduction, or between two
// reductions, but by way of Replicate.
struct Path {
  Step::Kind first;
  std::optional<Step::Kind> second;
};

Path path_between(const Placement& from, const Placement& to) {
  if (const auto kind = single_step(from, to)) {
    return {*kind, std::nullopt};
  }
  return {*single_step(from, Replicate()), single_step(Replicate(), to)};
}

// The plan where only mesh dimension `m` differs and nothing is in its way.
RedistributePlan plan_one_dim(
    const DeviceMesh& mesh,
    SizesRef sizes,
    int64_t element_size,
    PlacementsRef from,
    PlacementsRef to,
    size_t m) {
  RedistributePlan plan;
  const auto add = [&](Step::Kind kind, const Placement& after) {
    Step step;
    step.kind = kind;
    step.mesh_dim = static_cast<int64_t>(m);
    step.before = plan.steps.empty() ? Placements(from.begin(), from.end())
                                     : plan.steps.back().after;
    step.after = step.before;
    step.after[m] = after;
    plan.cost += step_cost(
        kind,
        largest_shard_bytes(mesh, sizes, element_size, step.before),
        mesh.shape()[m]);
    plan.steps.push_back(std::move(step));
  };
  const Path path = path_between(from[m], to[m]);
  if (path.second) {
    add(path.first, Replicate());
    add(*path.second, to[m]);
  } else {
    add(path.first, to[m]);
  }
  return plan;
}

}  // namespace

std::string Step::str() const {
  const Placement& from = before[mesh_dim];
  const Placement& to = after[mesh_dim];
  std::string text = name_of(kind);
  text += '(';
  switch (kind) {
    case Kind::AllGather:
      text += "dim=" + std::to_string(cut_by(from));
      break;
    case Kind::AllToAll:
      text += "dim=" + std::to_string(cut_by(from)) + "->" +
              std::to_string(cut_by(to));
      break;
    case Kind::AllReduce:
      text += "op=" + std::string(to_string(from.reduce_op()));
      break;
    case Kind::ReduceScatter:
      text += "op=" + std::string(to_string(from.reduce_op())) +
              ", dim=" + std::to_string(cut_by(to));
      break;
    case Kind::Slice:
      text += "dim=" + std::to_string(cut_by(to));
      break;
    case Kind::ToPartial:
      text += "op=" + std::string(to_string(to.reduce_op()));
      break;
  }
  text += ", mesh_dim=" + std::to_string(mesh_dim) + ")";
  return text;
}

std::string RedistributePlan::str() const {
  if (steps.empty()) {
    return "nothing";
  }
  std::string text;
  for (const Step& step : steps) {
    if (!text.empty()) {
      text += "; ";
    }
    text += step.str();
  }
  return text;
}

bool can_redistribute(
    const DeviceMesh& mesh, PlacementsRef from, PlacementsRef to) {
  const c10::ArrayRef<int64_t> shape = mesh.shape();
  for (size_t m = 0; m < to.size(); ++m) {
    if (to[m].kind() == Placement::Kind::MaskPartial && shape[m] > 1 &&
        from[m] != to[m]) {
      return false;
    }
  }
  return to.size() == 1 || reductions_commute(to);
}

RedistributePlan plan_redistribution(
    const DeviceMesh& mesh,
    SizesRef sizes,
    int64_t element_size,
    PlacementsRef from,
    PlacementsRef to) {
  TORCH_INTERNAL_ASSERT(
      from.size() == mesh.shape().size() && to.size() == from.size(),
      "placements that do not fit the mesh: ",
      to_string(from),
      " and ",
      to_string(to));
  check_reachable(mesh, from, to);

  size_t differing = 0;
  size_t last = 0;
  for (size_t m = 0; m < from.size(); ++m) {
    if (!same_data(mesh.shape()[m], from[m], to[m])) {
      ++differing;
      last = m;
    }
  }
  if (differing == 0) {
    return {};
  }
  const Placements start = renamed(mesh, from, to);
  const Placements goal = without_unit_dims(mesh, to);
  RedistributePlan plan;
  if (differing == 1 &&
      (from.size() == 1 || (single_step(start[last], goal[last]) &&
                            free_to_change(start, last, goal[last])))) {
    plan = plan_one_dim(mesh, sizes, element_size, start, goal, last);
  } else {
    plan = search_steps(mesh, sizes, element_size, start, goal);
  }
  plan.steps.front().before = Placements(from.begin(), from.end());
  plan.steps.back().after = Placements(to.begin(), to.end());
  return plan;
}

double redistribution_cost(const Spec& from, PlacementsRef to) {
  if (to.size() != 1) {
    return cached_redistribution(from, to)->cost;
  }
  const int64_t group = from.mesh.shape()[0];
  if (same_data(group, from.placements[0], to[0])) {
    return 0;
  }
  const auto bytes = [&](PlacementsRef placements) {
    return largest_shard_bytes(
        from.mesh,
        from.sizes,
        static_cast<int64_t>(c10::elementSize(from.shard_dtype)),
        placements);
  };
  const Path path = path_between(from.placements[0], to[0]);
  double cost = step_cost(path.first, bytes(from.placements), group);
  if (path.second) {
    cost += step_cost(*path.second, bytes({}), group);
  }
  return cost;
}

}  // namespace tessera::detail
