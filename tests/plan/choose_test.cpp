// The choice of rows, on hand-written rows and real schemas.
#include "plan/propagate.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "plan/redistribute_plan.h"
#include "tests/core/scoped_process_context.h"
#include "tests/core/thrown_message.h"
#include "tests/plan/asked.h"

namespace tessera::detail {
namespace choose_test {

const Placement R;
const Placement Psum = Partial("sum");
Placement S(int64_t dim) { return Shard(dim); }

const Rows& mm_rows() {
  static const Rows rows{
      {{S(0), R}, {S(0)}}, {{S(1), S(0)}, {Psum}}, {{R, S(1)}, {S(1)}}};
  return rows;
}

// A pointwise op of two matrices that is linear in both together.
const Rows& add_rows() {
  static const Rows rows{
      {{S(0), S(0)}, {S(0)}}, {{S(1), S(1)}, {S(1)}}, {{Psum, Psum}, {Psum}}};
  return rows;
}

const Rows& relu_rows() {
  static const Rows rows{{{S(0)}, {S(0)}}, {{S(1)}, {S(1)}}};
  return rows;
}

TEST(Choose, ExactRowsCostNothing) {
  Asked mm("aten::mm", "", {4});
  EXPECT_EQ(
      mm.in({64, 32}, "[S(0)]")
          .in({32, 16}, "[R]")
          .out({64, 16})
          .ask(mm_rows()),
      "[S(0)], [R] -> [S(0)]");
  EXPECT_EQ(mm.cost(), 0);
  mm.clear();
  EXPECT_EQ(
      mm.in({64, 32}, "[S(1)]")
          .in({32, 16}, "[S(0)]")
          .out({64, 16})
          .ask(mm_rows()),
      "[S(1)], [S(0)] -> [P(sum)]");
  EXPECT_EQ(mm.cost(), 0);
  mm.clear();
  EXPECT_EQ(
      mm.in({64, 32}, "[R]").in({32, 16}, "[R]").out({64, 16}).ask(mm_rows()),
      "[R], [R] -> [R]");
  EXPECT_EQ(mm.cost(), 0);
}

TEST(Choose, CheapestRow_AllToAllRatherThanGather) {
  Asked mm("aten::mm", "", {4});
  EXPECT_EQ(
      mm.in({64, 64}, "[R]")
          .in({64, 64}, "[S(0)]")
          .out({64, 64})
          .ask(mm_rows()),
      "[R], [S(1)] -> [S(1)]");
  EXPECT_EQ(
      mm.cost(),
      cached_redistribution(*mm.spec(1), parse_placements("[S(1)]"))->cost);
}

TEST(Choose, CheapestRow_PendingSumOfASmallResult) {
  // The table is never moved to multiply a few rows by it.
  Asked mm("aten::mm", "", {4});
  EXPECT_EQ(
      mm.in({8, 4096}, "[R]")
          .in({4096, 4096}, "[S(0)]")
          .out({8, 4096})
          .ask(mm_rows()),
      "[S(1)], [S(0)] -> [P(sum)]");
}

TEST(Choose, NoPendingSumForNothing) {
  // Slicing both inputs is nearly free, but the sum it leaves is not.
  Asked add("aten::add", "Tensor", {4});
  EXPECT_EQ(
      add.in({64, 64}, "[S(0)]")
          .in({64, 64}, "[R]")
          .out({64, 64})
          .ask(add_rows()),
      "[S(0)], [S(0)] -> [S(0)]");
}

// mm is linear in its first factor.
Rows mm_rows_with_pending() {
  Rows rows = mm_rows();
  rows.push_back({{Psum, R}, {Psum}});
  return rows;
}

TEST(Choose, PendingSum_NotMadeLarger) {
  Asked mm("aten::mm", "", {4});
  EXPECT_EQ(
      mm.in({8, 4}, "[P(sum)]")
          .in({4, 1000}, "[R]")
          .out({8, 1000})
          .ask(mm_rows_with_pending()),
      "[S(0)], [R] -> [S(0)]");
  EXPECT_EQ(
      mm.cost(),
      cached_redistribution(*mm.spec(0), parse_placements("[S(0)]"))->cost);
}

TEST(Choose, PendingSum_KeptOrMadeSmaller) {
  for (const int64_t columns : {1, 3, 4}) {
    Asked mm("aten::mm", "", {4});
    EXPECT_EQ(
        mm.in({8, 4}, "[P(sum)]")
            .in({4, columns}, "[R]")
            .out({8, columns})
            .ask(mm_rows_with_pending()),
        "[P(sum)], [R] -> [P(sum)]");
    EXPECT_EQ(mm.cost(), 0);
  }
}

TEST(Choose, PendingSum_MadeLargerWhereThatIsCheaper) {
  // To reduce first takes an all_reduce that sends more than the result's
  // reduce_scatter will: there is no row that takes a shard.
  const Rows rows{{{Psum}, {Psum}}};
  Asked op("aten::repeat", "", {4});
  EXPECT_EQ(
      op.in({1000}, "[P(sum)]").out({1500}).ask(rows), "[P(sum)] -> [P(sum)]");
  EXPECT_EQ(op.cost(), 0);
  op.clear();
  EXPECT_EQ(op.in({1000}, "[P(sum)]").out({3000}).ask(rows), "[R] -> [R]");
}

TEST(Choose, PendingSum_InputsCountTogether) {
  // Of two pending inputs one is broadcast: less comes out than went in.
  Asked add("aten::add", "Tensor", {4});
  EXPECT_EQ(
      add.in({8}, "[P(sum)]")
          .in({64, 8}, "[P(sum)]")
          .out({64, 8})
          .ask(add_rows()),
      "[P(sum)], [P(sum)] -> [P(sum)]");
  EXPECT_EQ(add.cost(), 0);
}

TEST(Choose, PendingSum_ToWhichAReplicatedTensorIsAdded) {
  for (const int64_t rows : {1, 64, 4096}) {
    Asked add("aten::add", "Tensor", {4});
    EXPECT_EQ(
        add.in({rows, 64}, "[P(sum)]")
            .in({64}, "[R]")
            .out({rows, 64})
            .ask(add_rows()),
        "[P(sum)], [P(sum)] -> [P(sum)]");
  }
  // More would be left to reduce than came.
  Asked larger("aten::add", "Tensor", {4});
  EXPECT_EQ(
      larger.in({8}, "[P(sum)]")
          .in({64, 8}, "[R]")
          .out({64, 8})
          .ask({{{S(0), S(1)}, {S(1)}}, {{Psum, Psum}, {Psum}}}),
      "[R], [R] -> [R]");
  // To make the other one pending something would have to be sent.
  Asked sharded("aten::add", "Tensor", {4});
  EXPECT_EQ(
      sharded.in({64, 64}, "[P(sum)]")
          .in({64, 64}, "[S(0)]")
          .out({64, 64})
          .ask(add_rows()),
      "[S(0)], [S(0)] -> [S(0)]");
  // The other mesh dimension stays as it is.
  Asked both("aten::add", "Tensor", {2, 2});
  EXPECT_EQ(
      both.in({64, 64}, "[P(sum), S(0)]")
          .in({64, 64}, "[R, S(0)]")
          .out({64, 64})
          .ask(add_rows()),
      "[P(sum), S(0)], [P(sum), S(0)] -> [P(sum), S(0)]");
}

TEST(Choose, PendingSum_OfALookupNotMadeLarger) {
  // A MaskPartial would pass as a sum without a move.
  Asked mm("aten::mm", "", {4});
  const auto choice = mm.in({8, 4}, {MaskPartial({99, 4}, 0)})
                          .in({4, 1000}, "[R]")
                          .out({8, 1000})
                          .ask(mm_rows_with_pending());
  EXPECT_EQ(choice, "[S(0)], [R] -> [S(0)]");
}

TEST(Choose, PendingSum_NotMadeLargerOnOneOfTwoMeshDims) {
  // The other mesh dimension stays as it lies.
  Asked mm("aten::mm", "", {2, 2});
  EXPECT_EQ(
      mm.in({8, 4}, "[P(sum), R]")
          .in({4, 1000}, "[R, S(1)]")
          .out({8, 1000})
          .ask(mm_rows_with_pending()),
      "[S(0), R], [R, S(1)] -> [S(0), S(1)]");
  mm.clear();
  // On a mesh dimension of one rank nothing is ever reduced.
  Asked one("aten::mm", "", {1, 2});
  EXPECT_EQ(
      one.in({8, 4}, "[P(sum), R]")
          .in({4, 1000}, "[R, S(1)]")
          .out({8, 1000})
          .ask(mm_rows_with_pending()),
      "[P(sum), R], [R, S(1)] -> [P(sum), S(1)]");
}

TEST(Choose, TwoMeshDims) {
  Asked mm("aten::mm", "", {2, 2});
  EXPECT_EQ(
      mm.in({64, 32}, "[S(0), R]")
          .in({32, 16}, "[R, S(1)]")
          .out({64, 16})
          .ask(mm_rows()),
      "[S(0), R], [R, S(1)] -> [S(0), S(1)]");
  EXPECT_EQ(mm.cost(), 0);
  mm.clear();
  EXPECT_EQ(
      mm.in({64, 32}, "[S(0), S(1)]")
          .in({32, 16}, "[R, S(0)]")
          .out({64, 16})
          .ask(mm_rows()),
      "[S(0), S(1)], [R, S(0)] -> [S(0), P(sum)]");
  EXPECT_EQ(mm.cost(), 0);
}

TEST(Choose, TwoMeshDims_WhatIsRightIsNotMoved) {
  // Cutting the replicated mesh dimension as well would make the reduction
  // cheaper.
  Asked relu("aten::relu", "", {2, 2});
  EXPECT_EQ(
      relu.in({4096, 4096}, "[R, P(sum)]").out({4096, 4096}).ask(relu_rows()),
      "[R, S(0)] -> [R, S(0)]");
}

TEST(Choose, ReductionsThatDoNotCommuteNeverMeet) {
  const Placement pmax = Partial("max");
  const Rows rows{{{S(0)}, {Psum}}, {{S(1)}, {pmax}}, {{R}, {R}}};
  Asked op("aten::relu", "", {2, 2});
  // Each row holds on its own mesh dimension, both together do not.
  const std::string text = op.in({8, 8}, "[S(0), S(1)]").out({8, 8}).ask(rows);
  EXPECT_GT(op.cost(), 0);
  EXPECT_EQ(text.find("P(sum), P(max)"), std::string::npos) << text;
}

TEST(Choose, InPlace_KeepsTheLayout) {
  Asked add("aten::add_", "Tensor", {4});
  EXPECT_EQ(
      add.written({8, 8}, "[S(1)]").in({8, 8}, "[R]").ask(add_rows()),
      "[S(1)], [S(1)] -> [S(1)]");
  add.clear();
  EXPECT_EQ(
      add.written({8, 8}, "[P(sum)]").in({8, 8}, "[R]").ask(add_rows()),
      "[P(sum)], [P(sum)] -> [P(sum)]");
  add.clear();
  EXPECT_EQ(
      add.written({8, 8}, "[R]").in({8, 8}, "[P(sum)]").ask(add_rows()),
      "[R], [R] -> [R]");
  add.clear();
  // The replicated tensor stays so, although slicing it would be cheap.
  EXPECT_EQ(
      add.written({8, 8}, "[R]").in({8, 8}, "[S(0)]").ask(add_rows()),
      "[R], [R] -> [R]");
}

TEST(Choose, InPlace_Impossible) {
  Asked relu("aten::relu_", "", {4});
  relu.written({8, 8}, "[P(sum)]");
  const std::string message =
      thrown_message<c10::NotImplementedError>([&] { relu.ask(relu_rows()); });
  EXPECT_NE(
      message.find(
          "Operator aten.relu_.default cannot keep the layout [P(sum)] of the "
          "tensor it writes; redistribute it first "
          "(tensor.redistribute(...)) or use the out-of-place op"),
      std::string::npos)
      << message;
  EXPECT_NE(
      relu.explain(relu_rows()).find("no row keeps the layout"),
      std::string::npos);
}

TEST(Choose, OutOfPlace_ReducesFirst) {
  Asked relu("aten::relu", "", {4});
  EXPECT_EQ(
      relu.in({8, 8}, "[P(sum)]").out({8, 8}).ask(relu_rows()),
      "[S(0)] -> [S(0)]");
  EXPECT_GT(relu.cost(), 0);
}

TEST(Choose, Needs) {
  const auto rows = [](Needs needs) { return Rows{{{S(0)}, {S(0)}, needs}}; };
  // 8 rows over 4 ranks are even, 7 fill all ranks, 5 leave one empty.
  const auto chosen = [&](int64_t n, Needs needs) {
    Asked op("aten::relu", "", {4});
    return op.in({n, 3}, "[S(0)]").out({n, 3}).ask(rows(needs));
  };
  const std::string held = "[S(0)] -> [S(0)]";
  const std::string refused = "[R] -> [R]";
  EXPECT_EQ(chosen(8, Needs::Even), held);
  EXPECT_EQ(chosen(7, Needs::Even), refused);
  EXPECT_EQ(chosen(8, Needs::NonEmpty), held);
  EXPECT_EQ(chosen(7, Needs::NonEmpty), held);
  EXPECT_EQ(chosen(5, Needs::NonEmpty), refused);
  EXPECT_EQ(chosen(5, Needs::Nothing), held);
}

TEST(Choose, Needs_OfAllMeshDimsTogether) {
  // 6 = 2 * 3 is even by either mesh dimension of 2x2, not by both.
  const Rows rows{{{S(0)}, {S(0)}, Needs::Even}};
  Asked op("aten::relu", "", {2, 2});
  EXPECT_EQ(
      op.in({6, 3}, "[S(0), R]").out({6, 3}).ask(rows),
      "[S(0), R] -> [S(0), R]");
  op.clear();
  EXPECT_EQ(
      op.in({6, 3}, "[S(0), S(0)]").out({6, 3}).ask(rows),
      "[S(0), R] -> [S(0), R]");
  op.clear();
  // The result counts as well: 8 rows become 4 x 2 on a mesh of 8.
  Asked view("aten::relu", "", {8});
  EXPECT_EQ(view.in({8}, "[S(0)]").out({4, 2}).ask(rows), "[R] -> [R]");
}

TEST(Choose, RowsThatCutWhatIsNotThere) {
  Asked relu("aten::relu", "", {4});
  EXPECT_EQ(
      relu.in({8}, "[P(sum)]").out({8}).ask({{{S(1)}, {S(1)}}}), "[R] -> [R]");
  relu.clear();
  EXPECT_EQ(
      relu.in({8}, "[S(0)]").out({}).ask({{{S(0)}, {S(0)}}}), "[R] -> [R]");
}

TEST(Choose, ArgumentsThatAreNotGiven) {
  const Rows rows{{{S(0), R}, {S(0)}}, {{S(0), S(5)}, {S(1)}}};
  Asked clamp("aten::clamp", "Tensor", {4});
  EXPECT_EQ(
      clamp.in({8, 8}, "[S(0)]").absent().out({8, 8}).ask(rows),
      "[S(0)], [R] -> [S(0)]");
  EXPECT_EQ(clamp.cost(), 0);
}

TEST(Choose, AMaskPartialGoesOnAsASum) {
  const Rows rows{{{Psum}, {Psum}}, {{S(0)}, {S(0)}}};
  Asked neg("aten::neg", "", {4});
  EXPECT_EQ(
      neg.in({8, 8}, {MaskPartial({99, 8}, 0)}).out({8, 8}).ask(rows),
      "[P(sum)] -> [P(sum)]");
  EXPECT_EQ(neg.cost(), 0);
}

TEST(Choose, RowsForAMaskPartialThatIsNotThere) {
  const Rows rows{{{MaskPartial({99, 8}, 0)}, {Psum}}};
  Asked neg("aten::neg", "", {4});
  EXPECT_EQ(neg.in({8, 8}, "[P(sum)]").out({8, 8}).ask(rows), "[R] -> [R]");
}

TEST(Choose, AMeshOfOneRankKeepsItsNames) {
  for (const char* placements : {"[R]", "[S(0)]", "[S(1)]", "[P(sum)]"}) {
    Asked add("aten::add", "Tensor", {1});
    const std::string p = placements;
    EXPECT_EQ(
        add.in({8, 8}, p).in({8, 8}, p).out({8, 8}).ask(add_rows()),
        p + ", " + p + " -> " + p);
    EXPECT_EQ(add.cost(), 0);
  }
  // In place any layout holds, even where many ranks would refuse.
  Asked relu("aten::relu_", "", {1});
  EXPECT_EQ(
      relu.written({8, 8}, "[P(sum)]").ask(relu_rows()),
      "[P(sum)] -> [P(sum)]");
  Asked mixed("aten::add", "Tensor", {2, 1});
  EXPECT_EQ(
      mixed.in({8, 8}, "[S(0), S(1)]")
          .in({8, 8}, "[R, S(1)]")
          .out({8, 8})
          .ask(add_rows()),
      "[S(0), S(1)], [S(0), S(1)] -> [S(0), S(1)]");
}

TEST(Choose, RowsOfTheWrongLength) {
  Asked mm("aten::mm", "", {4});
  mm.in({8, 8}, "[R]").in({8, 8}, "[R]").out({8, 8});
  const std::string message =
      thrown_message<c10::ValueError>([&] { mm.ask({{{S(0)}, {S(0)}}}); });
  EXPECT_NE(
      message.find(
          "[register_rule] the row S(0)->S(0) of aten.mm.default has "
          "placements for 1 tensor arguments and 1 results, but the call has "
          "2 and 1"),
      std::string::npos)
      << message;
}

TEST(Choose, SeveralResults) {
  const Rows rows{{{S(0)}, {S(0), Psum}}};
  Asked op("aten::std_mean", "", {4});
  EXPECT_EQ(
      op.in({8, 8}, "[S(0)]").out({8}).out({}).ask(rows),
      "[S(0)] -> [S(0)], [P(sum)]");
}

// Rows without pending results, so that the search minimises only the cost.
Rows random_rows(std::mt19937& random, size_t count) {
  const auto placement = [&]() -> Placement {
    const auto drawn = random() % 5;
    return drawn == 0 ? R : drawn == 1 ? Psum : S(drawn - 2);
  };
  Rows rows;
  for (size_t i = 0; i < count; ++i) {
    rows.push_back({{placement(), placement()}, {S(random() % 3)}});
  }
  return rows;
}

TEST(Choose, CheapestOfAllCombinations) {
  const char* layouts[] = {
      "[R, R]", "[S(0), S(1)]", "[S(0), S(0)]", "[P(sum), S(2)]", "[S(2), R]"};
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    Asked op("aten::add", "Tensor", {2, 3});
    op.in({12, 64, 7}, layouts[random() % 5])
        .in({12, 64, 7}, layouts[random() % 5])
        .out({12, 64, 7});
    Rows rows = random_rows(random, 6);
    op.ask(rows);
    rows.push_back({{R, R}, {R}});
    // A mesh dimension that some row takes as it lies is left alone.
    const auto candidates = [&](size_t m) {
      const auto exact = [&](const Row& row) {
        return row.inputs[0] == op.spec(0)->placements[m] &&
               row.inputs[1] == op.spec(1)->placements[m];
      };
      Rows found;
      std::copy_if(rows.begin(), rows.end(), std::back_inserter(found), exact);
      return found.empty() ? rows : found;
    };
    double least = std::numeric_limits<double>::infinity();
    for (const Row& a : candidates(0)) {
      for (const Row& b : candidates(1)) {
        double cost = 0;
        for (size_t i = 0; i < 2; ++i) {
          cost += plan_redistribution(
                      op.mesh(),
                      op.spec(i)->sizes,
                      4,
                      op.spec(i)->placements,
                      {a.inputs[i], b.inputs[i]})
                      .cost;
        }
        least = std::min(least, cost);
      }
    }
    EXPECT_NEAR(op.cost(), least, 1e-3) << to_string(rows);
  }
}

TEST(Choose, ManyCombinations) {
  // 13 rows on three mesh dimensions: more than are tried one by one.
  Rows rows;
  for (const char* op : {"avg", "product", "min", "max"}) {
    rows.push_back({{Partial(op), Partial(op)}, {Partial(op)}});
  }
  for (int64_t d = 0; d < 4; ++d) {
    rows.push_back({{S(d), R}, {S(d)}});
    rows.push_back({{S(d), S(d)}, {S(d)}});
  }
  Asked op("aten::add", "Tensor", {2, 2, 2});
  EXPECT_EQ(
      op.in({8, 8, 8, 8}, "[S(3), R, S(2)]")
          .in({8, 8, 8, 8}, "[S(3), R, R]")
          .out({8, 8, 8, 8})
          .ask(rows),
      "[S(3), R, S(2)], [S(3), R, R] -> [S(3), R, S(2)]");
  EXPECT_EQ(op.cost(), 0);
  op.clear();
  EXPECT_EQ(
      op.in({8, 8, 8, 8}, "[P(sum), P(sum), P(sum)]")
          .in({8, 8, 8, 8}, "[R, R, R]")
          .out({8, 8, 8, 8})
          .ask(rows),
      "[S(0), S(0), S(0)], [R, R, R] -> [S(0), S(0), S(0)]");
  op.clear();
  // Written: only rows that keep it are left, few enough to try them all.
  EXPECT_EQ(
      op.written({8, 8, 8, 8}, "[S(3), R, S(2)]")
          .in({8, 8, 8, 8}, "[R, P(sum), S(0)]")
          .ask(rows),
      "[S(3), R, S(2)], [R, R, S(2)] -> [S(3), R, S(2)]");
}

}  // namespace choose_test
}  // namespace tessera::detail
