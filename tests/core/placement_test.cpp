#include "tessera/placement.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <unordered_set>

#include "thrown_message.h"

namespace tessera {
namespace placement_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// One of each kind and argument, all different.
std::vector<Placement> all_different() {
  return {
      Replicate(),
      Shard(0),
      Shard(1),
      Shard(-1),
      Partial(),
      Partial(ReduceOp::Avg),
      Partial(ReduceOp::Product),
      Partial(ReduceOp::Min),
      Partial(ReduceOp::Max),
      MaskPartial({8, 4}, 0),
      MaskPartial({8, 4}, 1),
      MaskPartial({9, 4}, 0),
      MaskPartial({8}, 0)};
}

TEST(Placement, Text) {
  const struct {
    Placement placement;
    std::string str;
    std::string repr;
  } table[] = {
      {Replicate(), "R", "Replicate()"},
      {Shard(0), "S(0)", "Shard(dim=0)"},
      {Shard(-2), "S(-2)", "Shard(dim=-2)"},
      {Partial(), "P(sum)", "Partial(sum)"},
      {Partial(ReduceOp::Avg), "P(avg)", "Partial(avg)"},
      {Partial("product"), "P(product)", "Partial(product)"},
      {Partial("min"), "P(min)", "Partial(min)"},
      {Partial("max"), "P(max)", "Partial(max)"},
      {MaskPartial({8, 4}, 0),
       "MaskP",
       "MaskPartial(offset_shape=[8, 4], offset_dim=0)"},
  };
  for (const auto& row : table) {
    EXPECT_EQ(row.placement.str(), row.str);
    EXPECT_EQ(row.placement.repr(), row.repr);
    std::ostringstream out;
    out << row.placement;
    EXPECT_EQ(out.str(), row.str);
  }
}

TEST(Placement, EqualityAndHash) {
  const auto a = all_different();
  const auto b = all_different();
  std::unordered_set<size_t> hashes;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) {
      EXPECT_EQ(a[i] == b[j], i == j) << a[i].repr() << " " << b[j].repr();
    }
    EXPECT_EQ(hash_value(a[i]), hash_value(b[i])) << a[i].repr();
    hashes.insert(hash_value(a[i]));
  }
  EXPECT_EQ(hashes.size(), a.size());
}

TEST(Placement, Kinds) {
  EXPECT_TRUE(Placement().is_replicate());
  EXPECT_TRUE(Shard(1).is_shard());
  EXPECT_TRUE(Shard(1).is_shard(1));
  EXPECT_FALSE(Shard(1).is_shard(0));
  EXPECT_FALSE(Replicate().is_shard(0));
  EXPECT_FALSE(Partial().is_shard(0));
  EXPECT_TRUE(Partial().is_partial());
  EXPECT_TRUE(MaskPartial({4}, 0).is_partial());
  EXPECT_FALSE(Shard(0).is_partial());
  EXPECT_EQ(Partial("max").reduce_op(), ReduceOp::Max);
  EXPECT_EQ(MaskPartial({4}, 0).reduce_op(), ReduceOp::Sum);
}

TEST(Placement, MaskPartialCarriesTheTable) {
  const Placement p = MaskPartial({8, 4}, -1);
  EXPECT_EQ(p.offset_shape().vec(), (std::vector<int64_t>{8, 4}));
  EXPECT_EQ(p.offset_dim(), 1);
  EXPECT_THAT(
      detail::thrown_message<c10::ValueError>([] { MaskPartial({8, 4}, 2); }),
      AllOf(StartsWith("[MaskPartial] "), HasSubstr("[8, 4]")));
  EXPECT_THROW(Shard(0).offset_shape(), c10::ValueError);
}

TEST(Placement, ParseInvertsText) {
  for (const char* text :
       {"[R]",
        "[S(0)]",
        "[S(-1)]",
        "[P(sum)]",
        "[P(avg)]",
        "[P(product)]",
        "[P(min)]",
        "[P(max)]",
        "[S(0), R]",
        "[S(12), S(0), P(max)]",
        "[]"}) {
    EXPECT_EQ(to_string(parse_placements(text)), text);
  }
  EXPECT_EQ(to_string(parse_placements("S(0)")), "[S(0)]");
  EXPECT_EQ(to_string(parse_placements(" [ S( 1 ) ,R ] ")), "[S(1), R]");
  EXPECT_EQ(to_string(parse_placements("R, P(sum)")), "[R, P(sum)]");
}

TEST(Placement, ParseRefuses) {
  for (const char* text :
       {"",
        "X",
        "S",
        "S()",
        "S(x)",
        "S(1",
        "S(1 2)",
        "S(99999999999)",
        "P",
        "P(mean)",
        "R,",
        "[R",
        "R]",
        "[R,,R]",
        "MaskP",
        "["}) {
    EXPECT_THROW(parse_placements(text), c10::ValueError) << text;
  }
  EXPECT_THAT(
      detail::thrown_message<c10::ValueError>(
          [] { parse_placements("[R, T(0)]"); }),
      AllOf(StartsWith("[parse_placements] "), HasSubstr("\"T(0)\"")));
}

TEST(ReduceOp, Names) {
  for (const char* name : {"sum", "avg", "product", "min", "max"}) {
    EXPECT_EQ(to_string(parse_reduce_op(name)), name);
  }
  EXPECT_THAT(
      detail::thrown_message<c10::ValueError>([] { Partial("mean"); }),
      AllOf(HasSubstr("sum, avg, product, min, max"), HasSubstr("\"mean\"")));
}

}  // namespace placement_test
}  // namespace tessera
