// For tests that need a process for each rank.
#pragma once

#include <gtest/gtest.h>

#include "testing/worlds.h"

namespace tessera::testing {

// Tests of four processes, which begin and end together. Each makes a world of
// its own, with a short timeout: an error breaks a world's groups, and a rank
// that is left waiting should say so soon.
class FourProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(over_processes()) << "start this test with a launcher";
    ASSERT_EQ(test_world().size(), 4);
    test_world().barrier();
  }
  void TearDown() override { test_world().barrier(); }
};

}  // namespace tessera::testing
