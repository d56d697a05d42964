// Plans as text: no devices, no communication.
#include "plan/redistribute_plan.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/core/scoped_process_context.h"
#include "tests/core/thrown_message.h"

namespace tessera::detail {
namespace redistribute_plan_test {

using Shape = std::vector<int64_t>;

// As parse_placements, which has no text for it, with "MaskP" for one and the
// same MaskPartial.
Placements placements_from(std::string text) {
  for (size_t at = text.find("MaskP"); at != std::string::npos;
       at = text.find("MaskP")) {
    text.replace(at, 5, "S(99)");
  }
  Placements placements = parse_placements(text);
  for (Placement& placement : placements) {
    if (placement == Shard(99)) {
      placement = MaskPartial({16, 4}, 0);
    }
  }
  return placements;
}

RedistributePlan plan_of(
    const Shape& mesh_shape, const Shape& sizes, std::string_view text) {
  const size_t arrow = text.find("->");
  int64_t ranks = 1;
  for (const int64_t n : mesh_shape) {
    ranks *= n;
  }
  const ScopedProcessContext world(ranks);
  const DeviceMesh mesh = init_device_mesh("cpu", mesh_shape);
  const Placements from = placements_from(std::string(text.substr(0, arrow)));
  const Placements to = placements_from(std::string(text.substr(arrow + 2)));
  RedistributePlan plan = plan_redistribution(mesh, sizes, 4, from, to);
  if (!plan.steps.empty()) {
    EXPECT_EQ(to_string(plan.steps.front().before), to_string(from)) << text;
    EXPECT_EQ(to_string(plan.steps.back().after), to_string(to)) << text;
  }
  return plan;
}

struct Case {
  const char* layouts;
  const char* plan;
};

void expect_plans(
    const Shape& mesh_shape,
    const Shape& sizes,
    const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    EXPECT_EQ(plan_of(mesh_shape, sizes, c.layouts).str(), c.plan) << c.layouts;
  }
}

TEST(RedistributePlan, OneDim) {
  expect_plans(
      {4},
      {16, 8},
      {
          {"[R]->[R]", "nothing"},
          {"[S(0)]->[S(0)]", "nothing"},
          {"[S(0)]->[R]", "all_gather(dim=0, mesh_dim=0)"},
          {"[S(1)]->[R]", "all_gather(dim=1, mesh_dim=0)"},
          {"[S(0)]->[S(1)]", "all_to_all(dim=0->1, mesh_dim=0)"},
          {"[S(1)]->[S(0)]", "all_to_all(dim=1->0, mesh_dim=0)"},
          {"[R]->[S(1)]", "slice(dim=1, mesh_dim=0)"},
          {"[R]->[P(sum)]", "to_partial(op=sum, mesh_dim=0)"},
          {"[S(0)]->[P(sum)]",
           "all_gather(dim=0, mesh_dim=0); to_partial(op=sum, mesh_dim=0)"},
      });
}

TEST(RedistributePlan, PartialOfEachOp) {
  for (const std::string op : {"sum", "avg", "product", "min", "max"}) {
    const std::string pending = "[P(" + op + ")]";
    const auto plan = [&](const std::string& to) {
      return plan_of({4}, {16, 8}, pending + "->" + to).str();
    };
    const std::string reduce = "all_reduce(op=" + op + ", mesh_dim=0)";
    EXPECT_EQ(plan(pending), "nothing");
    EXPECT_EQ(plan("[R]"), reduce);
    EXPECT_EQ(
        plan("[S(1)]"), "reduce_scatter(op=" + op + ", dim=1, mesh_dim=0)");
    const std::string other = op == "sum" ? "max" : "sum";
    EXPECT_EQ(
        plan("[P(" + other + ")]"),
        reduce + "; to_partial(op=" + other + ", mesh_dim=0)");
  }
}

TEST(RedistributePlan, MaskPartialIsASum) {
  expect_plans(
      {4},
      {16, 8},
      {
          {"[MaskP]->[MaskP]", "nothing"},
          {"[MaskP]->[R]", "all_reduce(op=sum, mesh_dim=0)"},
          {"[MaskP]->[S(0)]", "reduce_scatter(op=sum, dim=0, mesh_dim=0)"},
          {"[MaskP]->[P(sum)]", "nothing"},
          {"[MaskP]->[P(max)]",
           "all_reduce(op=sum, mesh_dim=0); to_partial(op=max, mesh_dim=0)"},
      });
  expect_plans(
      {2, 2},
      {16, 8},
      {
          {"[MaskP, S(0)]->[MaskP, R]", "all_gather(dim=0, mesh_dim=1)"},
          {"[MaskP, S(0)]->[P(sum), R]", "all_gather(dim=0, mesh_dim=1)"},
          {"[MaskP, R]->[R, R]", "all_reduce(op=sum, mesh_dim=0)"},
          {"[R, MaskP]->[R, S(1)]",
           "reduce_scatter(op=sum, dim=1, mesh_dim=1)"},
      });
}

TEST(RedistributePlan, OnlyALookupMakesAMaskPartial) {
  for (const char* text :
       {"[R]->[MaskP]", "[P(sum)]->[MaskP]", "[S(0)]->[MaskP]"}) {
    const std::string message = thrown_message<c10::NotImplementedError>(
        [&] { plan_of({4}, {16, 8}, text); });
    EXPECT_NE(message.find("[redistribute] cannot go from"), std::string::npos)
        << message;
    EXPECT_NE(message.find("MaskP"), std::string::npos) << message;
  }
  const ScopedProcessContext world(4);
  const DeviceMesh mesh = init_device_mesh("cpu", {4});
  EXPECT_THROW(
      plan_redistribution(
          mesh, {16, 8}, 4, {MaskPartial({8, 2}, 0)}, {MaskPartial({9, 2}, 0)}),
      c10::NotImplementedError);
}

TEST(RedistributePlan, TwoDims) {
  expect_plans(
      {2, 2},
      {16, 8},
      {
          {"[R, R]->[S(0), S(0)]",
           "slice(dim=0, mesh_dim=0); slice(dim=0, mesh_dim=1)"},
          {"[S(0), S(1)]->[S(0), R]", "all_gather(dim=1, mesh_dim=1)"},
          {"[P(sum), R]->[S(0), R]",
           "reduce_scatter(op=sum, dim=0, mesh_dim=0)"},
          {"[R, S(0)]->[R, S(1)]", "all_to_all(dim=0->1, mesh_dim=1)"},
          // What makes the shards smaller comes first, what gathers last.
          {"[P(sum), R]->[R, S(0)]",
           "slice(dim=0, mesh_dim=1); all_reduce(op=sum, mesh_dim=0)"},
          {"[P(sum), S(0)]->[R, R]",
           "all_reduce(op=sum, mesh_dim=0); all_gather(dim=0, mesh_dim=1)"},
          {"[S(0), R]->[R, S(1)]",
           "slice(dim=1, mesh_dim=1); all_gather(dim=0, mesh_dim=0)"},
          // Pending reductions that do not commute never meet.
          {"[P(sum), R]->[R, P(max)]",
           "all_reduce(op=sum, mesh_dim=0); to_partial(op=max, mesh_dim=1)"},
      });
}

TEST(RedistributePlan, TwoDims_NestedShards) {
  expect_plans(
      {2, 2},
      {16, 8},
      {
          // The second cut is inside the first: it has to make way.
          {"[S(0), S(0)]->[R, S(0)]",
           "all_gather(dim=0, mesh_dim=1); all_gather(dim=0, mesh_dim=0); "
           "slice(dim=0, mesh_dim=1)"},
          {"[R, S(0)]->[S(0), S(0)]",
           "all_gather(dim=0, mesh_dim=1); slice(dim=0, mesh_dim=0); "
           "slice(dim=0, mesh_dim=1)"},
          {"[R, S(0)]->[S(0), R]",
           "all_gather(dim=0, mesh_dim=1); slice(dim=0, mesh_dim=0)"},
          // In the order of the mesh there is nothing to make way for.
          {"[S(0), S(0)]->[S(0), R]", "all_gather(dim=0, mesh_dim=1)"},
          {"[S(0), S(0)]->[S(0), S(1)]", "all_to_all(dim=0->1, mesh_dim=1)"},
          {"[P(sum), P(sum)]->[S(0), S(0)]",
           "reduce_scatter(op=sum, dim=0, mesh_dim=0); "
           "reduce_scatter(op=sum, dim=0, mesh_dim=1)"},
          {"[P(sum), P(sum)]->[R, S(0)]",
           "all_reduce(op=sum, mesh_dim=0); "
           "reduce_scatter(op=sum, dim=0, mesh_dim=1)"},
          {"[S(0), S(0)]->[S(1), S(1)]",
           "all_gather(dim=0, mesh_dim=1); all_to_all(dim=0->1, mesh_dim=0); "
           "slice(dim=1, mesh_dim=1)"},
      });
}

TEST(RedistributePlan, OneStepWhereOneDoes_HoweverUneven) {
  // One row over four ranks: a model that counts the largest shard would find
  // a detour cheaper.
  expect_plans(
      {4},
      {1, 4096},
      {{"[S(0)]->[R]", "all_gather(dim=0, mesh_dim=0)"},
       {"[S(0)]->[S(1)]", "all_to_all(dim=0->1, mesh_dim=0)"}});
  expect_plans(
      {8, 2},
      {4096, 4096},
      {{"[P(sum), R]->[R, R]", "all_reduce(op=sum, mesh_dim=0)"},
       {"[P(sum), R]->[S(0), R]",
        "reduce_scatter(op=sum, dim=0, mesh_dim=0)"}});
}

TEST(RedistributePlan, DimsOfSizeOneAreRenamed) {
  expect_plans(
      {1},
      {16, 8},
      {{"[S(0)]->[R]", "nothing"},
       {"[P(max)]->[S(1)]", "nothing"},
       {"[R]->[MaskP]", "nothing"},
       {"[R]->[P(avg)]", "nothing"}});
  expect_plans(
      {2, 1},
      {16, 8},
      {{"[S(0), S(0)]->[R, S(1)]", "all_gather(dim=0, mesh_dim=0)"},
       {"[S(0), P(sum)]->[S(0), R]", "nothing"},
       {"[P(sum), R]->[R, P(max)]", "all_reduce(op=sum, mesh_dim=0)"}});
  const RedistributePlan plan =
      plan_of({2, 1, 2}, {16, 8}, "[S(0), P(sum), S(0)]->[R, S(0), S(0)]");
  ASSERT_EQ(plan.steps.size(), 3u);
  for (size_t i = 1; i < plan.steps.size(); ++i) {
    EXPECT_EQ(plan.steps[i].before, plan.steps[i - 1].after);
  }
}

TEST(RedistributePlan, ScalarsAndEmptyTensors) {
  expect_plans({4}, {}, {{"[P(sum)]->[R]", "all_reduce(op=sum, mesh_dim=0)"}});
  expect_plans({4}, {0, 3}, {{"[S(0)]->[R]", "all_gather(dim=0, mesh_dim=0)"}});
}

}  // namespace redistribute_plan_test
}  // namespace tessera::detail
