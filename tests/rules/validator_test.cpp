// All rules, by brute force and both ways; and that the validator can fail.
#include "testing/validator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <regex>

#include "rules/rows.h"
#include "testing/worlds.h"

namespace tessera {
namespace {

using tessera::testing::dims;
using tessera::testing::Finding;
using tessera::testing::Report;
using tessera::testing::Sample;
using tessera::testing::t;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Validator : public ::testing::Test {
 protected:
  World world = World::simulate(4);
  std::vector<DeviceMesh> meshes = {
      init_device_mesh("cpu", {2}),
      init_device_mesh("cpu", {3}),
      init_device_mesh("cpu", {4})};

  Report validated(const Sample& sample, const Rule& rule) {
    Report report;
    validate(sample, rule, meshes, report);
    return report;
  }
};

Rule rule_with(Rows rows) {
  return Rule{[rows](const OpCall&) { return rows; }};
}

using tessera::detail::P;
using tessera::detail::R;
using tessera::detail::S;
const auto kSum = ReduceOp::Sum;

// Layouts that are right for a sample but have no row, on purpose.
struct Accepted {
  const char* op;      // a regular expression
  const char* layout;  // likewise
  const char* reason;
};

const std::vector<Accepted>& accepted() {
  static const std::vector<Accepted> list = {};
  return list;
}

bool is_accepted(const Finding& finding) {
  for (const auto& entry : accepted()) {
    if (std::regex_match(finding.sample, std::regex(entry.op)) &&
        std::regex_match(finding.row, std::regex(entry.layout))) {
      return true;
    }
  }
  return false;
}

TEST_F(Validator, EveryRuleHoldsAndNoneIsMissing) {
  Report report;
  for (const auto& sample : tessera::testing::all_samples()) {
    try {
      if (const Rule* rule = tessera::testing::rule_of_sample(sample)) {
        validate(sample, *rule, meshes, report);
      }
    } catch (const c10::Error& error) {
      ADD_FAILURE() << sample.str() << ": " << error.what_without_backtrace();
    }
  }
  std::cout << report.summary() << "\n";
  for (const auto& finding : report.wrong) {
    ADD_FAILURE() << "wrong row: " << finding.str();
  }
  for (const auto& finding : report.missing) {
    if (!is_accepted(finding)) {
      ADD_FAILURE() << "missing row: " << finding.str();
    }
  }
  // The table is not empty, and most samples' ops have rules.
  EXPECT_GT(report.samples, tessera::testing::all_samples().size() / 2);
}

TEST_F(Validator, FindsAWrongRow) {
  const Sample sample{"aten::mm", {t({5, 6}), t({6, 3})}};
  const auto report = validated(sample, rule_with({{{S(0), R}, {S(1)}}}));
  ASSERT_EQ(report.wrong.size(), 1);
  EXPECT_EQ(report.wrong[0].row, "S(0),R->S(1)");
  EXPECT_THAT(report.wrong[0].detail, HasSubstr("wrong shape"));
}

TEST_F(Validator, FindsARowThatIsWrongForUnevenShardsAlone) {
  // A mean of means: right where all shards are as long.
  const Rows rows{{{S(0)}, {P(ReduceOp::Avg)}}};
  const Sample uneven{"aten::mean.dim", {t({5, 3}), dims({0})}};
  EXPECT_EQ(validated(uneven, rule_with(rows)).wrong.size(), 1);
  const Sample even{"aten::mean.dim", {t({12, 3}), dims({0})}};
  EXPECT_THAT(validated(even, rule_with(rows)).wrong, IsEmpty());
}

TEST_F(Validator, FindsAPendingSumThatAnOpDoesNotLetThrough) {
  const Sample sample{"aten::relu", {t({5, 3})}};
  const auto report = validated(sample, rule_with({{{P(kSum)}, {P(kSum)}}}));
  ASSERT_EQ(report.wrong.size(), 1);
  EXPECT_EQ(report.wrong[0].row, "P(sum)->P(sum)");
}

TEST_F(Validator, FindsARowThatTheOpThrowsOn) {
  const Sample sample{"aten::mm", {t({5, 6}), t({6, 3})}};
  const auto report = validated(sample, rule_with({{{S(1), R}, {R}}}));
  ASSERT_EQ(report.wrong.size(), 1);
  EXPECT_THAT(report.wrong[0].detail, HasSubstr("threw"));
}

TEST_F(Validator, FindsMissingRows) {
  const Sample sample{"aten::mm", {t({5, 6}), t({6, 3})}};
  const auto report = validated(sample, rule_with({{{S(0), R}, {S(0)}}}));
  EXPECT_THAT(report.wrong, IsEmpty());
  std::vector<std::string> rows;
  for (const auto& finding : report.missing) {
    rows.push_back(finding.row);
  }
  EXPECT_THAT(
      rows,
      ::testing::UnorderedElementsAre(
          "R,S(1)->S(1)",
          "S(1),S(0)->P(sum)",
          "P(sum),R->P(sum)",
          "R,P(sum)->P(sum)"));
}

TEST_F(Validator, RespectsWhatARowNeeds) {
  // Rank 2 of 3 holds nothing of 4 rows: amax would throw there.
  const Sample sample{"aten::amax", {t({4, 2}), dims({0})}};
  Row row({S(0)}, {P(ReduceOp::Max)});
  EXPECT_EQ(validated(sample, rule_with({row})).wrong.size(), 1);
  row.needs = Needs::NonEmpty;
  EXPECT_THAT(validated(sample, rule_with({row})).wrong, IsEmpty());
}

}  // namespace
}  // namespace tessera
