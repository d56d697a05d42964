#include <gtest/gtest.h>

#include <string>

#include "plan/propagate.h"
#include "tests/plan/asked.h"

namespace tessera::detail {
namespace explain_choice_test {

const Placement R;
Placement S(int64_t dim) { return Shard(dim); }

Rows mm_rows() {
  return {
      {{S(0), R}, {S(0)}},
      {{S(1), S(0)}, {Partial("sum")}},
      {{R, S(1)}, {S(1)}, Needs::Even}};
}

TEST(ExplainChoice, OneDim) {
  Asked mm("aten::mm", "", {4});
  mm.in({64, 64}, "[R]").in({64, 64}, "[S(0)]").out({64, 64});
  EXPECT_EQ(
      mm.explain(mm_rows()),
      "aten.mm.default on " + mm.mesh().str() +
          "\n"
          "  argument 0: [R]\n"
          "  argument 1: [S(0)]\n"
          "mesh dim 0 of size 4\n"
          "    S(0),R->S(0)       43.2 us     argument 0: slice(dim=0, "
          "mesh_dim=0); argument 1: all_gather(dim=0, mesh_dim=0)\n"
          "    S(1),S(0)->P(sum)  0.9 us      argument 0: slice(dim=1, "
          "mesh_dim=0); then a pending reduction, 42.3 us\n"
          "  * R,S(1)->S(1)       33.1 us     argument 1: all_to_all(dim=0->1, "
          "mesh_dim=0)\n"
          "    R,R->R             42.3 us     argument 1: all_gather(dim=0, "
          "mesh_dim=0)\n"
          "chosen: [R], [S(1)] -> [S(1)], 33.1 us\n");
}

TEST(ExplainChoice, APendingSumThatWouldGrow) {
  Asked mm("aten::mm", "", {4});
  mm.in({8, 4}, "[P(sum)]").in({4, 1000}, "[R]").out({8, 1000});
  Rows rows = mm_rows();
  rows.push_back({{Partial("sum"), R}, {Partial("sum")}});
  const std::string text = mm.explain(rows);
  EXPECT_NE(
      text.find("    P(sum),R->P(sum)   0.0 us      nothing to move; then a "
                "pending reduction, 54.0 us\n"),
      std::string::npos)
      << text;
  EXPECT_NE(
      text.find("  * S(0),R->S(0)       30.1 us     argument 0: "
                "reduce_scatter(op=sum, dim=0, mesh_dim=0)\n"),
      std::string::npos)
      << text;
}

TEST(ExplainChoice, RefusedRows) {
  Asked mm("aten::mm", "", {4});
  mm.in({64, 64}, "[R]").in({64, 62}, "[S(1)]").out({64, 62});
  const std::string text = mm.explain(mm_rows());
  EXPECT_NE(
      text.find("    R,S(1)->S(1)       needs shards that are more even\n"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("  * "), std::string::npos) << text;
}

TEST(ExplainChoice, TwoDims) {
  Asked mm("aten::mm", "", {2, 2});
  mm.in({64, 64}, "[S(0), R]").in({64, 64}, "[R, S(1)]").out({64, 64});
  const std::string text = mm.explain(mm_rows());
  EXPECT_NE(
      text.find("mesh dim 0 of size 2\n  * S(0),R->S(0) "), std::string::npos)
      << text;
  EXPECT_NE(
      text.find("  * R,S(1)->S(1)       0.0 us      nothing to move\n"),
      std::string::npos)
      << text;
  EXPECT_NE(
      text.find("chosen: [S(0), R], [R, S(1)] -> [S(0), S(1)], 0.0 us\n"),
      std::string::npos)
      << text;
}

TEST(ExplainChoice, Written) {
  Asked relu("aten::relu_", "", {4});
  relu.written({8, 8}, "[S(0)]");
  const std::string text = relu.explain({{{S(0)}, {S(0)}}, {{S(1)}, {S(1)}}});
  EXPECT_NE(text.find("argument 0: [S(0)], written\n"), std::string::npos)
      << text;
  EXPECT_NE(
      text.find("    S(1)->S(1)  moves the tensor that is written\n"),
      std::string::npos)
      << text;
}

}  // namespace explain_choice_test
}  // namespace tessera::detail
