// Random choices for tests; the same for the same seed.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "tessera/tessera.h"

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
  // R or a cut along one of `ndim` dimensions.
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

}  // namespace tessera::testing
