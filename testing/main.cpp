// The main of test programs that run in both worlds. Over processes rank 0
// reports as usual; the others report only failures, with their rank.
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "testing/worlds.h"

namespace {

class FailuresOfRank : public testing::EmptyTestEventListener {
 public:
  explicit FailuresOfRank(int64_t rank) : rank_(static_cast<int>(rank)) {}

  void OnTestStart(const testing::TestInfo& info) override { test_ = &info; }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) {
      return;
    }
    std::fprintf(
        stderr,
        "[rank %d] %s.%s: %s:%d\n%s\n",
        rank_,
        test_ == nullptr ? "" : test_->test_suite_name(),
        test_ == nullptr ? "" : test_->name(),
        result.file_name() == nullptr ? "" : result.file_name(),
        result.line_number(),
        result.message());
  }

 private:
  int rank_;
  const testing::TestInfo* test_ = nullptr;
};

// Every test draws the same numbers, on every rank.
class SeedOfTest : public testing::EmptyTestEventListener {
 public:
  void OnTestStart(const testing::TestInfo&) override { at::manual_seed(1); }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new SeedOfTest);
  if (tessera::testing::over_processes()) {
    auto& world = tessera::testing::test_world();
    if (world.rank() != 0) {
      auto& listeners = testing::UnitTest::GetInstance()->listeners();
      delete listeners.Release(listeners.default_result_printer());
      listeners.Append(new FailuresOfRank(world.rank()));
    }
  }
  return RUN_ALL_TESTS();
}
