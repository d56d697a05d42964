// What the tests of the dispatcher say most: a mesh of four ranks, and what a
// distributed tensor must hold.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tessera/distribute.h"
#include "testing/layouts.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace tessera::testing {

// Calls `body` with a 1-d mesh of four ranks.
inline void on_four_ranks(const std::function<void(const DeviceMesh&)>& body) {
  EXPECT_TRUE(with_mesh({4}, body));
}

// Fails unless the tensor is distributed and its whole value is `expected`.
// Communicates.
inline void expect_value(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_TRUE(is_dtensor(actual)) << "not distributed";
  EXPECT_EQ(
      difference(DTensor(actual.detach()).full_tensor(), expected.detach()),
      "");
}

inline std::string placements_of(const at::Tensor& tensor) {
  return to_string(DTensor(tensor).placements());
}

}  // namespace tessera::testing
