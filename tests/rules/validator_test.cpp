// All rules, by brute force and both ways; and that the validator can fail.
#include "testing/validator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <regex>
#include <set>

#include "rules/rows.h"
#include "testing/worlds.h"

namespace tessera {
namespace validator_test {

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
  const char* sample;  // a regular expression
  const char* layout;  // likewise
  const char* reason;  // for the reader
};

const std::vector<Accepted>& accepted() {
  static const std::vector<Accepted> list = {
      // Right for these values only.
      {"aten::(logical_not_?|isnan|isinf|isposinf|isneginf|nan_to_num_?)",
       "P.*",
       "no term of the sample is 0, infinite or NaN"},
      {"aten::(nansum|any \\(int\\)|_to_copy \\(double to bool\\))",
       "P.*",
       "no term of the sample is NaN or 0"},
      {"aten::(nextafter|heaviside)_?", ".*P.*", "ignores one operand here"},
      {"aten::mm \\(no terms\\)", ".*P.*", "0 in every layout"},
      {"aten::addmm \\(no bias\\)", ".*", "beta is 0: the bias does not count"},
      // Terms of another dtype than their sum: integers wrap around, and terms
      // that are larger than their sum lose digits.
      {"aten::(mul|div)\\.Scalar \\(int.*\\)", "P.*", "converted"},
      {"aten::(add|sub|mul|div)_?\\.Tensor \\((int|int and double|to float)\\)",
       ".*P\\(sum\\)",
       "converted"},
      {"aten::(where\\.self|cat) \\(.*and.*\\)", ".*P.*", "converted"},
      {"aten::sum(\\.dim_IntList)? \\(.*to.*\\)", "P.*", "converted"},
      {"aten::_to_copy \\((double to float|int to double)\\)",
       "P.*",
       "converted"},
      {"aten::copy_ \\((int to double|to float)\\)", "P.*", "converted"},
      // Linear, but not where a number is 0 or infinite.
      {"aten::(div_?\\.Tensor|addcdiv_?).*",
       "P.*",
       "terms divided by 0 are infinities of both signs, their sum is NaN"},
      {"aten::xlogy_?\\.Tensor", "P.*", "0 * log(0) is 0 by definition"},
      // Right, and of little use.
      {"aten::(_prelu_kernel|glu|log_sigmoid|logit)_backward",
       "P.*",
       "rare gradients"},
      {"aten::rrelu_with_noise_backward", ".*", "does not read its input"},
      {"aten::(bitwise_left_shift_?|__lshift__)\\.Tensor",
       "P.*",
       "a sum of integers"},
      {"aten::(complex|copy|fill\\.Scalar|polar|trace|zero)", ".*P.*", "rare"},
      {"aten::equal", ".*", "unequal in every layout; the answer is no tensor"},
      {"aten::scatter\\.src",
       "P.*",
       "which of several values for one place wins is not specified"},
      {"aten::index_put_? \\((?!add).*\\)",
       "P.*",
       "likewise, and ranks may differ in it"},
      {"aten::index(\\.Tensor|_put_?) \\(mask.*\\)",
       ".*",
       "masks are made into integers before rules are asked"},
      {"aten::view\\.dtype \\(narrower\\)", "S.*", "only if cut evenly"},
      {"aten::cat \\(skipped\\)", ".*", "the other tensor has no elements"},
      // Losses and norms with a pending sum in a weight, or in an operand that
      // is not read.
      {"aten::binary_cross_entropy(_with_logits)? .*", "R,R,P.*", "a weight"},
      {"aten::native_layer_norm(_backward)?", ".*,P.*", "a weight or a bias"},
      {"aten::nll_loss(2d)?_(forward|backward) .*",
       ".*P.*",
       "a weight, or unread"},
      {"aten::mse_loss_backward .*", "R,P.*", "linear in both operands"},
      {"aten::native_group_norm(_backward)?.*", ".*,P.*", "a weight or a bias"},
      {"(aten::_scaled_dot_product_flash|tessera::causal)_attention_(for_cpu_)?"
       "backward",
       "R,R,.*",
       "gradients of keys that are sharded, of a value that is pending"},
      {"aten::multi(label)?_margin_loss(_forward|_backward)? .*",
       ".*",
       "a weight, or unread; means and sums are taken before rules are asked"},
      {"aten::(bincount \\(weights\\)|histogram.bins_tensor)",
       ".*P\\(sum\\)->P.*",
       "a weight"},
      {"aten::fractional_max_pool[23]d", ".*", "ignores some numbers here"},
      {"aten::grid_sampler_[23]d_backward", "R,P.*", "a product of two"},
      {"aten::_cdist_forward", "S\\(2\\),S\\(2\\).*", "where p is 1"},
      {"aten::isin.Tensor_Tensor", "R,S.*", "a value may be in several parts"},
      {"aten::rot90.*", "S\\(1\\).*", "a quarter turn, to one side"},
      {"aten::index_(copy|fill|reduce).*",
       "P.*",
       "which of several values for one place wins is not specified"},
      {"aten::(scatter|segment)_reduce.*", "P.*", "rare"},
      {"aten::convolution_backward.*", "R,P.*,P.*", "a product of two sums"},
      {"aten::.*_backward \\(mean\\)",
       "P.*",
       "the mean is divided out before rules are asked"},
      {"aten::.*(loss|cross_entropy)(_with_logits)? \\(sum\\)",
       "S.*P\\(sum\\)",
       "a loss is taken by element and reduced before rules are asked"},
  };
  return list;
}

bool is_accepted(const Finding& finding, const Accepted& entry) {
  return std::regex_match(finding.sample, std::regex(entry.sample)) &&
         std::regex_match(finding.row, std::regex(entry.layout));
}

// Only some samples are tried with TESSERA_SAMPLE, a regular expression.
bool is_wanted(const Sample& sample) {
  const char* wanted = std::getenv("TESSERA_SAMPLE");
  return wanted == nullptr || std::regex_match(sample.op, std::regex(wanted));
}

TEST_F(Validator, EveryRuleHoldsAndNoneIsMissing) {
  Report report;
  for (const auto& sample : tessera::testing::all_samples()) {
    if (!is_wanted(sample)) {
      continue;
    }
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
  std::set<const Accepted*> used;
  for (const auto& finding : report.missing) {
    bool known = false;
    for (const auto& entry : accepted()) {
      if (is_accepted(finding, entry)) {
        used.insert(&entry);
        known = true;
      }
    }
    if (!known) {
      ADD_FAILURE() << "missing row: " << finding.str();
    }
  }
  if (std::getenv("TESSERA_SAMPLE") != nullptr) {
    return;
  }
  for (const auto& entry : accepted()) {
    EXPECT_EQ(used.count(&entry), 1)
        << "nothing is missing there any more: " << entry.sample << ", "
        << entry.layout << " (" << entry.reason << ")";
  }
  // The table is not empty, and most samples' ops have rules.
  EXPECT_GT(report.samples, tessera::testing::all_samples().size() / 2);
}

TEST_F(Validator, EveryRuleHasASample) {
  std::set<std::string> sampled;
  for (const auto& sample : tessera::testing::all_samples()) {
    sampled.insert(sample.op);
    sampled.insert(sample.op.substr(0, sample.op.find('.')));
  }
  // Their values are not defined, or are no tensor.
  const std::set<std::string> exempt = {
      "aten::_local_scalar_dense",
      "aten::_masked_scale",  // has no CPU kernel
      "aten::empty_like",
      "aten::new_empty",
      "aten::new_empty_strided",
      // Kernels only for GPUs; tests/cuda runs them.
      "aten::_scaled_dot_product_cudnn_attention",
      "aten::_scaled_dot_product_cudnn_attention_backward",
      "aten::_scaled_dot_product_flash_attention",
      "aten::_scaled_dot_product_flash_attention_backward"};
  for (const auto& name : detail::rule_table().names()) {
    if (name.rfind("aten::", 0) != 0) {
      continue;  // registered by another test
    }
    EXPECT_EQ(sampled.count(name) + exempt.count(name), 1)
        << name << " has a rule but no sample";
  }
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

}  // namespace validator_test
}  // namespace tessera
