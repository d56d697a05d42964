// Lookups drawn at random, by the thousand, forward and backward against one
// device. A failure prints the case, whole.
#include <gtest/gtest.h>

#include <random>

#include "tests/api/embedding_cases.h"

namespace ts = tessera;
using ts::testing::LookupCase;
using ts::testing::over_processes;
using ts::testing::with_mesh;

namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  int64_t number(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  bool chance(int64_t one_in) { return number(1, one_in) == 1; }
  template <class T>
  T of(const std::vector<T>& values) {
    return values[number(0, static_cast<int64_t>(values.size()) - 1)];
  }
  // R or a cut along one of `ndim` dimensions.
  ts::Placements layout(int64_t mesh_dims, int64_t ndim) {
    ts::Placements placements;
    for (int64_t m = 0; m < mesh_dims; ++m) {
      const int64_t dim = number(-1, ndim - 1);
      placements.push_back(dim < 0 ? ts::Replicate() : ts::Shard(dim));
    }
    return placements;
  }

  LookupCase lookup(int64_t mesh_dims) {
    const int64_t rows = number(1, 14);
    const int64_t columns = number(1, 9);
    std::vector<int64_t> input(number(0, 4));
    for (auto& size : input) {
      size = chance(12) ? 0 : number(1, 5);
    }
    LookupCase c{
        ts::testing::exact_values(
            {rows, columns},
            of<c10::ScalarType>(
                {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}),
            number(0, 1 << 30)),
        ts::testing::random_indices(
            // Often few of the rows, so that many indices are equal.
            chance(2) ? rows : number(1, rows),
            input,
            number(0, 1 << 30),
            chance(2) ? at::kInt : at::kLong)};
    c.table = layout(mesh_dims, 2);
    c.batch = layout(mesh_dims, static_cast<int64_t>(input.size()));
    c.padding_idx = chance(2) ? -1 : number(0, rows - 1);
    c.sparse = chance(4);
    // Scaled gradients of half types are rounded by one device at each step.
    c.scale_grad_by_freq =
        !c.sparse && chance(4) && c10::elementSize(c.weight.scalar_type()) > 2;
    c.way = of<ts::LookupWay>(
        {ts::LookupWay::Cheapest,
         ts::LookupWay::Gather,
         ts::LookupWay::Exchange});
    return c;
  }

 private:
  std::mt19937_64 random_;
};

class RandomLookups : public ::testing::TestWithParam<std::vector<int64_t>> {};

TEST_P(RandomLookups, AsOnOneDevice) {
  const auto& shape = GetParam();
  const int trials = over_processes() ? 60 : 800;
  with_mesh(shape, [&](const ts::DeviceMesh& mesh) {
    int failures = 0;
    for (int trial = 0; trial < trials && failures < 5; ++trial) {
      Draw draw(1000 * mesh.size() + 100'000 * mesh.ndim() + trial);
      const auto c = draw.lookup(mesh.ndim());
      std::string failure;
      try {
        failure = ts::testing::lookup_failure(c, mesh);
      } catch (const c10::Error& error) {
        failure = c.str() + ": " + error.what_without_backtrace();
      }
      EXPECT_EQ(failure, "") << "trial " << trial;
      failures += failure.empty() ? 0 : 1;
    }
  });
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
    Meshes,
    RandomLookups,
    ::testing::Values(
        std::vector<int64_t>{1},
        std::vector<int64_t>{2},
        std::vector<int64_t>{3},
        std::vector<int64_t>{4},
        std::vector<int64_t>{7},
        std::vector<int64_t>{2, 2},
        std::vector<int64_t>{3, 2},
        std::vector<int64_t>{2, 2, 2}),
    mesh_name);

}  // namespace
