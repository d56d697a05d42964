// Every sample, on every mesh, in many layouts, against one device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <cstdlib>
#include <iostream>
#include <regex>
#include <string>

#include "tessera/rule.h"
#include "tessera/scopes.h"
#include "testing/oracle.h"
#include "testing/worlds.h"

namespace tessera {
namespace op_oracle_test {

using tessera::testing::Oracle;

// How many layouts to try for a sample. Over processes every one of them
// communicates, and the simulated world has tried them all.
size_t layout_limit(const DeviceMesh& mesh) {
  if (testing::over_processes()) {
    return mesh.size() < testing::test_world().size() ? 2 : 3;
  }
  return mesh.ndim() == 1 ? 64 : 12;
}

struct Tally {
  size_t samples = 0;
  size_t calls = 0;
  size_t backwards = 0;
  size_t refused = 0;
  size_t failed = 0;
};

// Only some samples are tried with TESSERA_SAMPLE, a regular expression.
bool is_wanted(const testing::Sample& sample) {
  const char* wanted = std::getenv("TESSERA_SAMPLE");
  return wanted == nullptr || std::regex_match(sample.op, std::regex(wanted));
}

void check_sample(
    const testing::Sample& sample, const DeviceMesh& mesh, Tally& tally) {
  const Oracle oracle(sample);
  ++tally.samples;
  size_t failures = 0;
  auto tried = testing::layouts_to_try(
      oracle.tensors(), mesh, layout_limit(mesh), tally.samples);
  if (testing::over_processes() && tried.size() > 1) {
    tried.erase(tried.begin());  // all replicated: nothing is sent
  }
  for (const auto& layouts : tried) {
    const auto verdict = oracle.check(mesh, layouts);
    ++tally.calls;
    tally.backwards += oracle.differentiable() ? 1 : 0;
    tally.refused += verdict.refused ? 1 : 0;
    if (!verdict.failure.empty()) {
      ++tally.failed;
      // The first few tell what is wrong with the sample.
      if (++failures <= 2) {
        ADD_FAILURE() << verdict.failure;
      }
    }
  }
}

class OpOracle : public ::testing::TestWithParam<std::vector<int64_t>> {};

TEST_P(OpOracle, SamplesEqualOneDevice) {
  Tally tally;
  const bool ran = testing::with_mesh(GetParam(), [&](const DeviceMesh& mesh) {
    for (const auto& sample : testing::all_samples()) {
      if (!is_wanted(sample)) {
        continue;
      }
      try {
        check_sample(sample, mesh, tally);
      } catch (const c10::Error& error) {
        ADD_FAILURE() << sample.str()
                      << ", on one device: " << error.what_without_backtrace();
      }
    }
  });
  // Four processes cannot hold a mesh of eight ranks.
  EXPECT_TRUE(ran || testing::over_processes());
  std::cout << tally.samples << " samples, " << tally.calls << " layouts, "
            << tally.backwards << " with gradients, " << tally.refused
            << " refused as allowed, " << tally.failed << " failed\n";
  // A refusal is rare: most in-place ops do without.
  EXPECT_LE(tally.refused * 4, tally.calls);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes,
    OpOracle,
    ::testing::ValuesIn(testing::mesh_shapes()),
    [](const auto& info) { return testing::mesh_name(info.param); });

// An op with a rule that is wrong: a running sum of cut rows is no running sum.
at::Tensor running_sum(const at::Tensor& x) { return x.cumsum(0); }

TORCH_LIBRARY(tessera_planted, library) {
  library.def("running_sum(Tensor x) -> Tensor");
  library.impl("running_sum", c10::DispatchKey::CPU, &running_sum);
}

TEST(OpOracleSelfTest, FindsAWrongNumber) {
  register_rule(
      "tessera_planted::running_sum",
      {[](const OpCall&) -> Rows { return {{{Shard(0)}, {Shard(0)}}}; },
       [](const OpCall& call) -> std::vector<Sizes> {
         return {call.tensor(0).sizes};
       }});
  const tessera::testing::Sample sample{
      "tessera_planted::running_sum",
      {tessera::testing::t({5, 3})},
      "",
      /*forward_only=*/true};
  tessera::testing::with_mesh({4}, [&](const DeviceMesh& mesh) {
    const Oracle oracle(sample);
    EXPECT_EQ(oracle.check(mesh, {{Replicate()}}).failure, "");
    const auto failure = oracle.check(mesh, {{Shard(0)}}).failure;
    EXPECT_THAT(
        failure,
        ::testing::AllOf(
            ::testing::HasSubstr("tessera_planted::running_sum"),
            ::testing::HasSubstr("[S(0)]"),
            ::testing::HasSubstr("expected")));
  });
}

// An op that is refused is a failure, too, unless the sample says so.
TEST(OpOracleSelfTest, FindsARefusal) {
  const Strict strict;
  tessera::testing::Sample sample{
      "aten::unique_consecutive", {tessera::testing::t({5, 3})}};
  tessera::testing::with_mesh({4}, [&](const DeviceMesh& mesh) {
    const auto verdict = Oracle(sample).check(mesh, {{Shard(0)}});
    EXPECT_FALSE(verdict.refused);
    EXPECT_THAT(verdict.failure, ::testing::HasSubstr("refused"));
    sample.refusal = "aten.unique_consecutive.default";
    EXPECT_TRUE(Oracle(sample).check(mesh, {{Shard(0)}}).refused);
  });
}

}  // namespace op_oracle_test
}  // namespace tessera
