// Lookups drawn at random, by the thousand, forward and backward against one
// device. A failure prints the case, whole.
#include <gtest/gtest.h>

#include "testing/draw.h"
#include "tests/api/embedding_cases.h"

namespace ts = tessera;
using ts::testing::Draw;
using ts::testing::expect_trials;
using ts::testing::LookupCase;
using ts::testing::over_processes;

namespace embedding_random_test {

LookupCase drawn(Draw& draw, int64_t mesh_dims) {
  const int64_t rows = draw.number(1, 14);
  const int64_t columns = draw.number(1, 9);
  std::vector<int64_t> input(draw.number(0, 4));
  for (auto& size : input) {
    size = draw.chance(12) ? 0 : draw.number(1, 5);
  }
  LookupCase c{
      ts::testing::exact_values(
          {rows, columns},
          draw.of<c10::ScalarType>(
              {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}),
          draw.number(0, 1 << 30)),
      ts::testing::random_indices(
          // Often few of the rows, so that many indices are equal.
          draw.chance(2) ? rows : draw.number(1, rows),
          input,
          draw.number(0, 1 << 30),
          draw.chance(2) ? at::kInt : at::kLong)};
  c.table = draw.layout(mesh_dims, 2);
  c.batch = draw.layout(mesh_dims, static_cast<int64_t>(input.size()));
  c.padding_idx = draw.chance(2) ? -1 : draw.number(0, rows - 1);
  c.sparse = draw.chance(4);
  // Scaled gradients of half types are rounded by one device at each step.
  c.scale_grad_by_freq = !c.sparse && draw.chance(4) &&
                         c10::elementSize(c.weight.scalar_type()) > 2;
  c.strategy = draw.of<ts::LookupStrategy>(
      {ts::LookupStrategy::Cheapest,
       ts::LookupStrategy::Gather,
       ts::LookupStrategy::Exchange});
  return c;
}

class RandomLookups : public ::testing::TestWithParam<std::vector<int64_t>> {};

TEST_P(RandomLookups, AsOnOneDevice) {
  expect_trials(
      GetParam(),
      over_processes() ? 60 : 800,
      [](Draw& draw, const ts::DeviceMesh& mesh) {
        const auto c = drawn(draw, mesh.ndim());
        try {
          return ts::testing::lookup_failure(c, mesh);
        } catch (const c10::Error& error) {
          return c.str() + ": " + error.what_without_backtrace();
        }
      });
}

INSTANTIATE_TEST_SUITE_P(
    Meshes,
    RandomLookups,
    ::testing::ValuesIn(ts::testing::trial_meshes()),
    [](const auto& info) { return ts::testing::mesh_name(info.param); });

}  // namespace embedding_random_test
