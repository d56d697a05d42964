// For tests that need a process for each rank.
#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>

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

  // Runs the body with so many MiB of shared memory for each process; "0": over
  // sockets. Looked at when a group connects.
  static void with_memory(
      const char* megabytes, const std::function<void()>& body) {
    const char* before = std::getenv("TESSERA_SHARED_MEMORY");
    const std::string kept = before != nullptr ? before : "";
    setenv("TESSERA_SHARED_MEMORY", megabytes, 1);
    SCOPED_TRACE(std::string("TESSERA_SHARED_MEMORY=") + megabytes);
    body();
    if (before != nullptr) {
      setenv("TESSERA_SHARED_MEMORY", kept.c_str(), 1);
    } else {
      unsetenv("TESSERA_SHARED_MEMORY");
    }
  }

  // The text of the error that `fn` throws, which must come within the limit.
  template <typename Fn>
  static std::string error_within(std::chrono::milliseconds limit, Fn fn) {
    const auto begin = std::chrono::steady_clock::now();
    std::string text = "no error";
    try {
      fn();
    } catch (const c10::Error& error) {
      text = error.what_without_backtrace();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, limit);
    return text;
  }
};

}  // namespace tessera::testing
