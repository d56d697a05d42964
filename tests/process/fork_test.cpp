// A child that is forked from a rank. Run as processes.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "testing/processes.h"
#include "tests/comm/free_port.h"
#include "tests/comm/shards.h"

namespace tessera::testing {
namespace fork_test {

using detail::collectives;

class ForkedChild : public FourProcesses {
 protected:
  // What the body does in a child: its exit code.
  static int in_child(const std::function<bool()>& body) {
    const pid_t child = fork();
    if (child == 0) {
      bool good = false;
      try {
        good = body();
      } catch (...) {
      }
      _exit(good ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
  }

  static double sum(const DeviceMesh& mesh, double value) {
    return collectives(mesh)
        .all_reduce({mesh, 0}, at::full({2}, value), ReduceOp::Sum)[0][0]
        .item<double>();
  }
};

TEST_F(ForkedChild, HasNoPartInTheCollectivesOfItsParent) {
  const World world = World::from_environment(1);
  const auto mesh = init_device_mesh("cpu", {4});
  EXPECT_EQ(sum(mesh, 1), 4);
  const auto refused = [&](const std::function<void()>& call) {
    try {
      call();
    } catch (const c10::Error& error) {
      return std::string(error.what()).find("was forked from rank") !=
             std::string::npos;
    }
    return false;
  };
  EXPECT_EQ(
      in_child([&] {
        return refused([&] { sum(mesh, 100); }) &&
               refused([&] { collectives(mesh).agree(mesh, ""); });
      }),
      0);
  EXPECT_EQ(sum(mesh, 1), 4);
}

// A child that ends, and ends the worlds it has inherited, tells nobody that
// its parent has left.
TEST_F(ForkedChild, MayEndAsItLikes) {
  auto world = std::make_unique<World>(World::from_environment(1));
  const auto mesh = init_device_mesh("cpu", {4});
  EXPECT_EQ(sum(mesh, 1), 4);
  EXPECT_EQ(
      in_child([&] {
        world.reset();
        return true;
      }),
      0);
  EXPECT_EQ(sum(mesh, 1), 4);
  test_world().barrier();
  EXPECT_EQ(sum(mesh, 2), 8);
}

// Each rank's child makes a world of its own, with memory of its own, while the
// parents go on.
TEST_F(ForkedChild, MayMakeAWorldOfItsOwn) {
  const World world = World::from_environment(1);
  const auto mesh = init_device_mesh("cpu", {4});
  EXPECT_EQ(sum(mesh, 1), 4);
  // Rank 0 chooses where the children meet.
  const auto port = collectives(mesh).broadcast(
      {mesh, 0}, at::full({1}, static_cast<int64_t>(free_port())))[0];
  const pid_t child = fork();
  if (child == 0) {
    bool good = false;
    try {
      const World own = World::connect(
          world.rank(),
          4,
          "127.0.0.1",
          static_cast<uint16_t>(port.item<int64_t>()));
      const auto its = init_device_mesh("cpu", {4});
      good = true;
      for (int i = 0; i < 20; ++i) good &= sum(its, 100) == 400;
    } catch (...) {
    }
    _exit(good ? 0 : 1);
  }
  for (int i = 0; i < 20; ++i) EXPECT_EQ(sum(mesh, 1), 4);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace fork_test
}  // namespace tessera::testing
