// Every sample, on every mesh, in many layouts, against one device.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "testing/oracle.h"
#include "testing/worlds.h"

namespace tessera {
namespace {

using tessera::testing::Oracle;

// How many layouts to try for a sample. Over processes every one of them
// communicates, and the simulated world has tried them all.
size_t layout_limit(const DeviceMesh& mesh) {
  if (testing::over_processes()) {
    return 3;
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

// One sample is tried alone with TESSERA_SAMPLE=aten::add.Tensor.
bool is_wanted(const testing::Sample& sample) {
  const char* wanted = std::getenv("TESSERA_SAMPLE");
  return wanted == nullptr || sample.op == wanted;
}

void check_sample(
    const testing::Sample& sample, const DeviceMesh& mesh, Tally& tally) {
  const Oracle oracle(sample);
  ++tally.samples;
  size_t failures = 0;
  for (const auto& layouts : testing::layouts_to_try(
           oracle.tensors(), mesh, layout_limit(mesh), tally.samples)) {
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
        ADD_FAILURE() << sample.str() << ", on one device: "
                      << error.what_without_backtrace();
      }
    }
  });
  // Four processes cannot hold a mesh of eight ranks.
  EXPECT_TRUE(ran || testing::over_processes());
  std::cout << tally.samples << " samples, " << tally.calls << " layouts, "
            << tally.backwards << " with gradients, " << tally.refused
            << " refused as allowed, " << tally.failed << " failed\n";
  // A refusal is rare: most in-place ops do without.
  EXPECT_LE(tally.refused * 5, tally.calls);
}

std::string mesh_name(
    const ::testing::TestParamInfo<std::vector<int64_t>>& info) {
  std::string name;
  for (const int64_t size : info.param) {
    name += (name.empty() ? "" : "x") + std::to_string(size);
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, OpOracle, ::testing::ValuesIn(testing::mesh_shapes()), mesh_name);

}  // namespace
}  // namespace tessera
