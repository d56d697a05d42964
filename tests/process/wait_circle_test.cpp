// Ranks that wait for each other in different groups find out before their
// timeout; those that may still come are left alone. Run as processes, over
// shared memory and over sockets.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include <array>
#include <thread>

#include "testing/processes.h"
#include "tests/comm/shards.h"

namespace tessera::testing {
namespace wait_circle_test {

using detail::collectives;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Much longer than it takes to find out.
constexpr seconds kTimeout{60};

class WaitCircle : public FourProcesses {
 protected:
  static void with_each_transport(const std::function<void(World&)>& body) {
    for (const char* megabytes : {"64", "0"}) {
      with_memory(megabytes, [&] {
        World world = World::from_environment(1, {kTimeout});
        body(world);
        test_world().barrier();
      });
    }
  }

  static void reduce(const DeviceMesh& mesh, int64_t dim) {
    const auto out =
        collectives(mesh).all_reduce({mesh, dim}, at::ones({4}), ReduceOp::Sum);
    EXPECT_TRUE(
        at::equal(out[0], at::full({4}, static_cast<double>(mesh.size(dim)))));
  }

  // The error of `fn`, which must come before the timeout.
  template <typename Fn>
  static std::string error_of(Fn fn) {
    return error_within(kTimeout / 2, fn);
  }
};

// Each in a group that the next one is not in yet.
TEST_F(WaitCircle, OfFourRanks) {
  with_each_transport([](World& world) {
    const DeviceMesh mesh("cpu", {0, 1, 2, 3}, {2, 2});
    reduce(mesh, 0);
    reduce(mesh, 1);
    test_world().barrier();
    const int64_t rank = world.rank();
    const std::array<int64_t, 4> awaited{2, 0, 3, 1};
    EXPECT_THAT(
        error_of([&] { reduce(mesh, rank == 0 || rank == 3 ? 0 : 1); }),
        AllOf(
            StartsWith(c10::str("[all_reduce] rank ", rank, " waited ")),
            HasSubstr(c10::str("for rank ", awaited[rank], ": it ")),
            AnyOf(
                HasSubstr("it waits in all_reduce (call 2 of cpu ["),
                HasSubstr("it has stopped with this error")),
            Not(HasSubstr("Timed out")),
            HasSubstr("The last collectives of this rank:")));
  });
}

// One rank calls a collective of a row, the others one of all.
TEST_F(WaitCircle, OfTwoAndThoseWhoWaitForThem) {
  with_each_transport([](World& world) {
    const DeviceMesh rows("cpu", {0, 1, 2, 3}, {2, 2});
    const auto all = init_device_mesh("cpu", {4});
    for (int i = 0; i < 3; ++i) {
      reduce(rows, 1);
      reduce(all, 0);
    }
    test_world().barrier();
    const int64_t rank = world.rank();
    const bool odd = rank == 1;
    EXPECT_THAT(
        error_of([&] { odd ? reduce(rows, 1) : reduce(all, 0); }),
        AllOf(
            StartsWith(c10::str("[all_reduce] rank ", rank)),
            HasSubstr(odd ? "rank 0" : "rank 1"),
            Not(HasSubstr("Timed out"))));
  });
}

// A failure in one group is known to those who wait in another.
TEST_F(WaitCircle, ForARankThatHasFailed) {
  with_each_transport([](World& world) {
    const DeviceMesh mesh("cpu", {0, 1, 2, 3}, {2, 2});
    reduce(mesh, 0);
    reduce(mesh, 1);
    test_world().barrier();
    const int64_t rank = world.rank();
    // Ranks 0 and 1 disagree; 2 waits for 0, and 3 for 1.
    const auto text = error_of([&] {
      if (rank == 0) reduce(mesh, 1);
      if (rank == 1) {
        const std::vector<Parts> each{Parts(2, 1)};
        collectives(mesh).all_gather({mesh, 1}, at::ones({1}), 0, each);
      }
      if (rank >= 2) reduce(mesh, 0);
    });
    EXPECT_THAT(text, Not(HasSubstr("Timed out")));
    EXPECT_THAT(text, StartsWith("["));
    if (rank >= 2) {
      EXPECT_THAT(
          text,
          HasSubstr(c10::str(
              "for rank ", rank - 2, ": it has stopped with this error: [")));
    }
  });
}

// A chain of waits that ends at a rank that computes.
TEST_F(WaitCircle, NotWhereOneIsLate) {
  with_each_transport([](World& world) {
    const DeviceMesh mesh("cpu", {0, 1, 2, 3}, {2, 2});
    reduce(mesh, 0);
    reduce(mesh, 1);
    for (int round = 0; round < 2; ++round) {
      // 2 waits for 3, and 0 for 2.
      if (world.rank() == 3) std::this_thread::sleep_for(milliseconds(200));
      if (world.rank() >= 2) reduce(mesh, 1);
      reduce(mesh, 0);
      if (world.rank() < 2) reduce(mesh, 1);
    }
  });
}

// Two threads, each with groups of its own: their calls have no common order.
TEST_F(WaitCircle, NotWhereAnotherThreadComes) {
  with_each_transport([](World& world) {
    const DeviceMesh mesh("cpu", {0, 1, 2, 3}, {2, 2});
    const auto all = init_device_mesh("cpu", {4});
    const auto work = [](const DeviceMesh& on, int64_t dim, bool late) {
      for (int i = 0; i < 2; ++i) {
        if (late) std::this_thread::sleep_for(milliseconds(80));
        reduce(on, dim);
      }
    };
    // Half of the ranks are late in the one, half in the other.
    const bool first = world.rank() % 2 == 0;
    std::thread other([&] { work(mesh, 1, first); });
    work(all, 0, !first);
    other.join();
    // Threads that live for one call.
    for (int i = 0; i < 2; ++i) {
      std::thread rows([&] { work(mesh, 1, first); });
      std::thread columns([&] { work(mesh, 0, !first); });
      rows.join();
      columns.join();
    }
  });
}

// A rank that goes on after an error is waited for.
TEST_F(WaitCircle, NotWhereARankHasRecovered) {
  with_each_transport([](World& world) {
    const DeviceMesh mesh("cpu", {0, 1, 2, 3}, {2, 2});
    reduce(mesh, 0);
    reduce(mesh, 1);
    test_world().barrier();
    if (world.rank() < 2) {
      // A row that fails.
      EXPECT_NE(
          error_of([&] {
            const std::vector<Parts> each{Parts(2, world.rank() + 1)};
            const auto mine = at::ones({world.rank() + 1});
            collectives(mesh).all_gather({mesh, 1}, mine, 0, each);
          }),
          "no error");
    }
    // Then one that does not.
    const DeviceMesh again("cpu", {1, 0, 3, 2}, {2, 2});
    reduce(again, 1);
    test_world().barrier();
    if (world.rank() < 2) std::this_thread::sleep_for(milliseconds(200));
    reduce(mesh, 0);
  });
}

}  // namespace wait_circle_test
}  // namespace tessera::testing
