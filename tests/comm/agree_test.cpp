// Agreement on errors, in both worlds.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include "tests/comm/shards.h"

namespace tessera::testing {
namespace agree_test {

using detail::collectives;
using detail::ErrorKind;
using ::testing::StartsWith;

TEST(Agree, NobodyHasAnError) {
  for_each_mesh([](const DeviceMesh& mesh) {
    EXPECT_NO_THROW(collectives(mesh).agree(mesh, ""));
  });
}

// What this process passes: over processes only these ranks have an error, in a
// simulated world the caller has met it on one of them.
std::string error_of(const DeviceMesh& mesh, c10::ArrayRef<int64_t> ranks) {
  if (mesh.simulated()) return "[op] no good";
  for (const int64_t rank : ranks) {
    if (rank == test_world().rank()) {
      return "[op] no good" + std::string(static_cast<size_t>(rank), '!');
    }
  }
  return "";
}

TEST(Agree, EveryRankGetsTheFirstError) {
  with_mesh({4}, [](const DeviceMesh& mesh) {
    try {
      collectives(mesh).agree(mesh, error_of(mesh, {3, 1}), ErrorKind::Index);
      ADD_FAILURE() << "no error";
    } catch (const c10::IndexError& error) {
      EXPECT_STREQ(
          error.what_without_backtrace(),
          mesh.simulated() ? "[op] no good" : "[op] no good! (rank 1)");
    }
    // And nothing is left over for the next collective.
    EXPECT_NO_THROW(collectives(mesh).agree(mesh, ""));
  });
}

TEST(Agree, KeepsTheTypeOfTheError) {
  with_mesh({2}, [](const DeviceMesh& mesh) {
    if (outside(mesh)) return;
    const auto agree = [&](ErrorKind kind) {
      collectives(mesh).agree(mesh, error_of(mesh, {1}), kind);
    };
    EXPECT_THROW(agree(ErrorKind::Value), c10::ValueError);
    EXPECT_THROW(agree(ErrorKind::Index), c10::IndexError);
    EXPECT_THROW(agree(ErrorKind::Type), c10::TypeError);
    EXPECT_THROW(agree(ErrorKind::NotImplemented), c10::NotImplementedError);
    EXPECT_THROW(agree(ErrorKind::Error), c10::Error);
  });
}

TEST(Agree, LongTexts) {
  with_mesh({3}, [](const DeviceMesh& mesh) {
    if (outside(mesh)) return;
    auto text = error_of(mesh, {2});
    if (!text.empty()) text = std::string(100'000, 'x') + text;
    try {
      collectives(mesh).agree(mesh, text);
      ADD_FAILURE() << "no error";
    } catch (const c10::Error& error) {
      const std::string got = error.what_without_backtrace();
      EXPECT_EQ(got.find("[op] no good"), 100'000);
    }
  });
}

}  // namespace agree_test
}  // namespace tessera::testing
