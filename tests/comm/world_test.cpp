// Worlds as scopes, and what their making refuses.
#include "tessera/world.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <thread>

#include "comm/process/job_store.h"
#include "comm/transport/socket_connect.h"
#include "tests/comm/free_port.h"
#include "tests/comm/shards.h"

namespace tessera::testing {
namespace world_test {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

template <typename Error, typename Fn>
std::string text_of(Fn fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(World, ScopesNest) {
  const World outer = World::simulate(2);
  EXPECT_TRUE(in_world());
  const auto outer_mesh = init_device_mesh("cpu", {2});
  {
    const World inner = World::simulate(5);
    EXPECT_EQ(init_device_mesh("cpu", {5}).size(), 5);
    EXPECT_EQ(inner.size(), 5);
    EXPECT_EQ(inner.rank(), 0);
    EXPECT_TRUE(inner.simulated());
    // The outer world's mesh goes on working meanwhile.
    const auto out = detail::collectives(outer_mesh)
                         .all_reduce(
                             {outer_mesh, 0},
                             Shards{at::ones({1}), at::ones({1})},
                             ReduceOp::Sum);
    EXPECT_EQ(out[1].item<float>(), 2);
  }
  EXPECT_EQ(init_device_mesh("cpu", {2}), outer_mesh);
  EXPECT_THROW(init_device_mesh("cpu", {5}), c10::ValueError);
}

TEST(World, ScopesMayEndInAnyOrderAndBeMoved) {
  auto a = std::make_unique<World>(World::simulate(2));
  auto b = std::make_unique<World>(World::simulate(3));
  World moved = std::move(*b);
  b.reset();
  EXPECT_EQ(init_device_mesh("cpu", {3}).size(), 3);
  a.reset();
  EXPECT_EQ(init_device_mesh("cpu", {3}).size(), 3);
  EXPECT_EQ(moved.size(), 3);
}

TEST(World, MeshesOfAnEndedWorldDoNotCommunicate) {
  const auto mesh = [] {
    const World world = World::simulate(2);
    return init_device_mesh("cpu", {2});
  }();
  EXPECT_THAT(
      text_of<c10::Error>([&] { detail::collectives(mesh); }),
      AllOf(
          StartsWith("[World] the world in which DeviceMesh("),
          HasSubstr("has ended")));
}

TEST(World, WorldsOfOneSizeAreNotTheSame) {
  const World first = World::simulate(2);
  const auto mesh = init_device_mesh("cpu", {2});
  const World second = World::simulate(2);
  EXPECT_FALSE(mesh == init_device_mesh("cpu", {2}));
}

TEST(World, TheTimeoutIsTheWorlds) {
  World world = World::simulate(1);
  EXPECT_EQ(world.timeout(), std::chrono::minutes(5));
  world.set_timeout(milliseconds(7));
  EXPECT_EQ(world.timeout(), milliseconds(7));
  EXPECT_THAT(
      text_of<c10::ValueError>([&] { world.set_timeout(milliseconds(0)); }),
      StartsWith("[World::set_timeout] the timeout must be positive"));
  world.set_timeout(milliseconds::max());
  EXPECT_EQ(world.timeout(), milliseconds::max());
  world.barrier();
}

// Points in time beyond what the clock can tell.
TEST(World, NoTimeoutIsTooLong) {
  using detail::after;
  using detail::Deadline;
  const auto now = detail::Clock::now();
  EXPECT_EQ(after(now, milliseconds(5)), now + milliseconds(5));
  for (const auto wait :
       {milliseconds(10'000'000'000'000), milliseconds::max()}) {
    EXPECT_EQ(after(now, wait), Deadline::max());
    EXPECT_EQ(after(after(now, wait), milliseconds(1)), Deadline::max());
    EXPECT_GT(detail::time_left(detail::from_now(wait)), milliseconds(0));
    const World world = World::connect(0, 1, "127.0.0.1", free_port(), {wait});
    EXPECT_EQ(world.timeout(), wait);
  }
  EXPECT_LT(detail::time_left(now - milliseconds(5)), milliseconds(0));
}

TEST(World, Refusals) {
  EXPECT_EQ(
      text_of<c10::ValueError>([] { World::simulate(0); }),
      "[World::simulate] expected at least one rank but 0 were given");
  EXPECT_EQ(
      text_of<c10::ValueError>([] { World::connect(2, 2, "127.0.0.1", 1); }),
      "[World::connect] expected a rank from 0 to 1 of a world of 2 but 2 was "
      "given");
  EXPECT_THAT(
      text_of<c10::ValueError>(
          [] { World::connect(0, 1, "127.0.0.1", 1, {milliseconds(-1)}); }),
      StartsWith("[World::connect] the timeout must be positive"));
}

TEST(WorldOfProcesses, OneProcessIsAWorldToo) {
  const uint16_t port = free_port();
  // Twice at one address: the second does not find what the first has left.
  for (int i = 0; i < 2; ++i) {
    World world = World::connect(0, 1, "127.0.0.1", port);
    EXPECT_FALSE(world.simulated());
    EXPECT_EQ(world.rank(), 0);
    world.barrier();
    const auto mesh = init_device_mesh("cpu", {1});
    EXPECT_EQ(mesh.local_positions().size(), 1U);
  }
}

TEST(WorldOfProcesses, SaysWhichRanksDidNotCome) {
  const uint16_t port = free_port();
  const auto where = "127.0.0.1:" + std::to_string(port);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(
      text_of<c10::Error>([&] {
        World::connect(0, 3, "127.0.0.1", port, {milliseconds(300)});
      }),
      AllOf(
          StartsWith("[World::connect] rank 0 of 3 could not meet the others"),
          HasSubstr(where),
          HasSubstr("ranks 1, 2 did not come within 300 ms"),
          HasSubstr("Check that")));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(WorldOfProcesses, SaysThatRankZeroIsNotThere) {
  const uint16_t port = free_port();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(
      text_of<c10::Error>([&] {
        World::connect(1, 2, "127.0.0.1", port, {milliseconds(300)});
      }),
      AllOf(
          StartsWith("[World::connect] rank 1 of 2 could not meet the others"),
          HasSubstr("127.0.0.1:" + std::to_string(port)),
          HasSubstr("within 300 ms"),
          HasSubstr("Check that rank 0 is running")));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

c10::intrusive_ptr<c10d::Store> served_store() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = std::chrono::seconds(77);
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

// As one whose server has stopped.
class StoreThatHangs : public c10d::HashStore {
 public:
  c10::intrusive_ptr<c10d::Store> clone() override {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    return c10d::HashStore::clone();
  }
};

// Something listens there and says nothing.
TEST(WorldOfProcesses, ASilentStoreIsGivenUp) {
  const detail::Listener silent("127.0.0.1");
  for (const bool given : {false, true}) {
    SCOPED_TRACE(given);
    const auto begin = std::chrono::steady_clock::now();
    c10::intrusive_ptr<c10d::Store> store;
    if (given) store = c10::make_intrusive<StoreThatHangs>();
    EXPECT_THAT(
        text_of<c10::Error>([&] {
          const WorldOptions options{milliseconds(300)};
          given ? World::connect(1, 2, store, options)
                : World::connect(1, 2, "127.0.0.1", silent.port(), options);
        }),
        AllOf(
            StartsWith("[World::connect] rank 1 of 2 could not meet"),
            HasSubstr("does not answer"),
            HasSubstr("Check that")));
    EXPECT_LT(
        std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  }
}

// The port is that of another job, whose ranks are turned away from ours.
TEST(WorldOfProcesses, NobodyJoinsAnotherJob) {
  const uint16_t port = free_port();
  WorldOptions options{milliseconds(2000), "job 1000"};
  const World world = World::connect(0, 1, "127.0.0.1", port, options);
  detail::Launch other;
  other.rank = 1;
  other.size = 3;
  other.address = "127.0.0.1";
  other.port = port;
  other.job = "job 5501";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(
      text_of<c10::Error>([&] {
        detail::open_job_store(other, detail::from_now(milliseconds(300)));
      }),
      HasSubstr("the store there is that of another job ('job 1000', not "
                "'job 5501')"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(WorldOfProcesses, MeetInAStoreThatIsThereAlready) {
  const auto store = served_store();
  // Twice: the second does not find what the first has left.
  for (int i = 0; i < 2; ++i) {
    World world = World::connect(0, 1, store);
    EXPECT_FALSE(world.simulated());
    EXPECT_EQ(world.size(), 1);
    world.barrier();
    EXPECT_EQ(init_device_mesh("cpu", {1}).local_positions().size(), 1U);
  }
  EXPECT_EQ(store->getTimeout(), std::chrono::seconds(77));
}

TEST(WorldOfProcesses, SaysWhichRanksDidNotComeToTheStore) {
  const auto store = served_store();
  EXPECT_THAT(
      text_of<c10::Error>(
          [&] { World::connect(1, 3, store, {milliseconds(300)}); }),
      AllOf(
          StartsWith("[World::connect] rank 1 of 3 could not meet the others "
                     "in the store: ranks 0, 2 did not come within 300 ms"),
          HasSubstr("Check that")));
}

TEST(WorldOfProcesses, StoreRefusals) {
  const c10::intrusive_ptr<c10d::Store> store =
      c10::make_intrusive<c10d::HashStore>();
  EXPECT_THAT(
      text_of<c10::ValueError>([&] { World::connect(3, 3, store); }),
      StartsWith("[World::connect] expected a rank from 0 to 2"));
  EXPECT_THAT(
      text_of<c10::ValueError>(
          [&] { World::connect(0, 1, store, {milliseconds(0)}); }),
      StartsWith("[World::connect] the timeout must be positive"));
  const c10::intrusive_ptr<c10d::Store> none;
  EXPECT_THAT(
      text_of<c10::TypeError>([&] { World::connect(0, 1, none); }),
      StartsWith("[World::connect] expected a store"));
}

}  // namespace world_test
}  // namespace tessera::testing
