// Random choices for tests; the same for the same seed.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace tessera::testing {

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
  // R or a shard along one of `ndim` dimensions.
  Placements layout(int64_t mesh_dims, int64_t ndim) {
    Placements placements;
    for (int64_t m = 0; m < mesh_dims; ++m) {
      const int64_t dim = number(-1, ndim - 1);
      placements.push_back(dim < 0 ? Replicate() : Shard(dim));
    }
    return placements;
  }

 private:
  std::mt19937_64 random_;
};

// Trials on a mesh of this shape, in the world that the tests run in.
// `failure_of(draw, mesh)` runs one and gives what is wrong, whole, or an empty
// text. Gives up after five failures.
template <class F>
void expect_trials(
    const std::vector<int64_t>& shape, int trials, const F& failure_of) {
  with_mesh(shape, [&](const DeviceMesh& mesh) {
    int failures = 0;
    for (int trial = 0; trial < trials && failures < 5; ++trial) {
      Draw draw(1000 * mesh.size() + 100'000 * mesh.ndim() + trial);
      const std::string failure = failure_of(draw, mesh);
      EXPECT_EQ(failure, "") << "trial " << trial;
      failures += failure.empty() ? 0 : 1;
    }
  });
}

// Uneven ones, and of up to three dimensions.
inline std::vector<std::vector<int64_t>> trial_meshes() {
  return {{1}, {2}, {3}, {4}, {7}, {2, 2}, {3, 2}, {2, 2, 2}};
}

}  // namespace tessera::testing
