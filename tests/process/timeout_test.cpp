// What the others see when a rank does not come, or goes. Run as processes.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include <thread>

#include "testing/processes.h"
#include "tests/comm/shards.h"

namespace tessera::testing {
namespace timeout_test {

using detail::collectives;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class RankMissing : public FourProcesses {
 protected:
  // The text of the error that `fn` throws, which must come within the timeout
  // and some.
  template <typename Fn>
  static std::string error_in_time(milliseconds timeout, Fn fn) {
    return error_within(timeout + seconds(10), fn);
  }
};

TEST_F(RankMissing, AtTheFirstCollectiveOfAGroup) {
  const milliseconds timeout(1500);
  World world = World::from_environment(1, {timeout});
  const DeviceMesh mesh("cpu", {0, 1, 2, 3}, {4}, {"tp"});
  if (world.rank() != 3) {
    const auto text = error_in_time(timeout, [&] {
      collectives(mesh).all_reduce({mesh, 0}, at::ones({4}), ReduceOp::Sum);
    });
    EXPECT_THAT(
        text,
        AllOf(
            StartsWith(
                "[all_reduce] rank " + std::to_string(world.rank()) +
                " waited "),
            HasSubstr("in group [0, 1, 2, 3] (mesh dim 'tp' of DeviceMesh("),
            HasSubstr(": rank 3 did not come. Check that")));
  }
  test_world().barrier();
}

TEST_F(RankMissing, LaterOn) {
  World world = World::from_environment(1);
  const DeviceMesh mesh("cpu", {0, 1, 2, 3}, {2, 2});
  const auto reduce = [&] {
    return collectives(mesh).all_reduce(
        {mesh, 1}, at::ones({4}), ReduceOp::Sum);
  };
  EXPECT_TRUE(at::equal(reduce()[0], at::full({4}, 2.0)));
  // The new timeout holds for groups that exist.
  const milliseconds timeout(1000);
  world.set_timeout(timeout);
  if (world.rank() == 2) {
    EXPECT_THAT(
        error_in_time(timeout, reduce),
        AllOf(
            StartsWith("[all_reduce] rank 2 waited 1"),
            HasSubstr("in group [2, 3] (mesh dim 1 of DeviceMesh("),
            HasSubstr("for rank 3: Timed out waiting"),
            HasSubstr("Check that every rank of the group is running")));
  } else if (world.rank() != 3) {
    // The other group knows nothing of it.
    EXPECT_TRUE(at::equal(reduce()[0], at::full({4}, 2.0)));
  }
  test_world().barrier();
}

// What a late rank sends must not be taken for what comes next.
TEST_F(RankMissing, AGroupThatFailedStaysFailed) {
  World world = World::from_environment(1);
  const auto mesh = init_device_mesh("cpu", {4});
  const auto reduce = [&](double value) {
    return collectives(mesh).all_reduce(
        {mesh, 0}, at::full({4}, value), ReduceOp::Sum)[0];
  };
  EXPECT_TRUE(at::equal(reduce(1), at::full({4}, 4.0)));
  test_world().barrier();
  const milliseconds timeout(500);
  world.set_timeout(timeout);
  if (world.rank() != 3) {
    EXPECT_THAT(error_in_time(timeout, [&] { reduce(1); }), HasSubstr("rank"));
  }
  test_world().barrier();
  // The late one finds that the others have gone, or their old messages; they
  // find neither its messages nor its connection good any more.
  if (world.rank() == 3) {
    try {
      reduce(1);
    } catch (const c10::Error&) {
    }
  }
  test_world().barrier();
  EXPECT_THAT(
      error_in_time(timeout, [&] { reduce(100); }), HasSubstr("all_reduce"));
  test_world().barrier();
}

// Sizes alike, but not the collective: wrong numbers, if nobody looked.
TEST_F(RankMissing, RanksInDifferentCollectives) {
  World world = World::from_environment(1, {seconds(60)});
  const auto mesh = init_device_mesh("cpu", {4});
  collectives(mesh).agree(mesh, "");
  test_world().barrier();
  const auto ones = at::ones({4, 8});
  const auto text = error_in_time(seconds(60), [&] {
    if (world.rank() == 1) {
      const std::vector<Parts> rows{Parts(4, 1)};
      collectives(mesh).all_to_all_rows({mesh, 0}, ones, rows, rows);
    } else {
      const std::vector<Parts> each{Parts(4, 1)};
      collectives(mesh).all_gather({mesh, 0}, at::ones({1, 8}), 0, each);
    }
  });
  EXPECT_THAT(text, HasSubstr("the same collectives in the same order"));
  test_world().barrier();
}

TEST_F(RankMissing, ItsWorldHasEnded) {
  const milliseconds timeout = seconds(60);
  auto world = std::make_unique<World>(World::from_environment(1, {timeout}));
  const auto mesh = init_device_mesh("cpu", {4});
  collectives(mesh).agree(mesh, "");
  const int64_t rank = world->rank();
  if (rank == 1) {
    world.reset();
  } else {
    // Seen at once, not after the timeout.
    EXPECT_THAT(
        error_in_time(
            milliseconds(0),
            [&] {
              collectives(mesh).all_gather(
                  {mesh, 0}, at::ones({1}), 0, Parts(4, 1));
            }),
        AllOf(
            StartsWith("[all_gather] rank " + std::to_string(rank) + " lost"),
            HasSubstr("in group [0, 1, 2, 3] (mesh dim 0 of DeviceMesh("),
            HasSubstr("to rank "),
            HasSubstr("see the other rank's output for what ended it")));
  }
  world.reset();
  test_world().barrier();
}

TEST_F(RankMissing, AtABarrier) {
  const milliseconds timeout(1000);
  World world = World::from_environment(1, {timeout});
  if (world.rank() != 0) {
    EXPECT_THAT(
        error_in_time(timeout, [&] { world.barrier(); }),
        AllOf(
            StartsWith("[World::barrier] rank "),
            HasSubstr("in group [0, 1, 2, 3] (the world): rank 0 did not "
                      "come")));
  }
  test_world().barrier();
}

// A rank whose program fails tells the others through agree, and none hangs.
TEST_F(RankMissing, OrItSaysWhatHappened) {
  World world = World::from_environment(1);
  const auto mesh = init_device_mesh("cpu", {4});
  try {
    collectives(mesh).agree(
        mesh,
        world.rank() == 2 ? "[embedding] index 9 is outside" : "",
        detail::ErrorKind::Index);
    ADD_FAILURE() << "no error";
  } catch (const c10::IndexError& error) {
    EXPECT_STREQ(
        error.what_without_backtrace(),
        "[embedding] index 9 is outside (rank 2)");
  }
}

}  // namespace timeout_test
}  // namespace tessera::testing
