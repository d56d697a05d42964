// Properties of every collective, over shared memory and over sockets: no wait
// is longer than the timeout, and two calls are never taken for one another.
// Run as processes.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <thread>

#include "comm/comm_event.h"
#include "testing/processes.h"
#include "testing/throws.h"
#include "tests/comm/shards.h"

namespace tessera::testing {
namespace mismatch_test {

using detail::collectives;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// One call of a collective, which a test may alter.
struct Variant {
  ReduceOp op = ReduceOp::Sum;
  at::ScalarType dtype = at::kFloat;
  int64_t width = 4;
};

struct Named {
  const char* name;
  bool reduces;
  bool has_dtype;
  std::function<void(const DeviceMesh&, const Variant&)> call;
};

// Four ranks, rows of `width` elements.
const std::vector<Named>& all_collectives() {
  static const std::vector<Parts> whole{Parts(4, 4)};
  static const std::vector<Parts> one{Parts(4, 1)};
  const auto rows = [](const Variant& v) {
    return at::ones({4, v.width}, v.dtype);
  };
  static const std::vector<Named> all{
      {"all_reduce",
       true,
       true,
       [=](const DeviceMesh& m, const Variant& v) {
         collectives(m).all_reduce({m, 0}, rows(v), v.op);
       }},
      {"all_gather",
       false,
       true,
       [=](const DeviceMesh& m, const Variant& v) {
         collectives(m).all_gather({m, 0}, rows(v), 0, whole);
       }},
      {"reduce_scatter",
       true,
       true,
       [=](const DeviceMesh& m, const Variant& v) {
         collectives(m).reduce_scatter({m, 0}, rows(v), 0, one, v.op);
       }},
      {"all_to_all",
       false,
       true,
       [=](const DeviceMesh& m, const Variant& v) {
         const std::vector<Parts> columns{Parts(4, v.width)};
         collectives(m).all_to_all({m, 0}, rows(v), {0, one}, {1, columns});
       }},
      {"all_to_all_rows",
       false,
       true,
       [=](const DeviceMesh& m, const Variant& v) {
         collectives(m).all_to_all_rows({m, 0}, rows(v), one, one);
       }},
      {"broadcast",
       false,
       true,
       [=](const DeviceMesh& m, const Variant& v) {
         collectives(m).broadcast({m, 0}, rows(v));
       }},
      {"scatter",
       false,
       true,
       [=](const DeviceMesh& m, const Variant& v) {
         collectives(m).scatter({m, 0}, rows(v), 0, one);
       }},
      {"agree", false, false, [](const DeviceMesh& m, const Variant&) {
         collectives(m).agree(m, "");
       }}};
  return all;
}

class EveryCollective : public FourProcesses {
 protected:
  // Runs the body in a world over each transport.
  static void with_each_transport(
      const std::function<void(World&, const DeviceMesh&)>& body) {
    for (const char* megabytes : {"64", "0"}) {
      with_memory(megabytes, [&] {
        World world = World::from_environment(1, {seconds(30)});
        const auto mesh = init_device_mesh("cpu", {4});
        collectives(mesh).agree(mesh, "");
        // A group that breaks ends the calls of those who are late, too.
        test_world().barrier();
        body(world, mesh);
        test_world().barrier();
      });
    }
  }

  // Rank 1 makes `odd`, the others `usual`; then all of them make one more
  // call, unlike any of those. Every rank must see an error, at once, that
  // names a rank and a collective.
  static void expect_refused(
      const std::function<void(const DeviceMesh&)>& usual,
      const std::function<void(const DeviceMesh&)>& odd) {
    with_each_transport([&](World& world, const DeviceMesh& mesh) {
      const auto begin = std::chrono::steady_clock::now();
      const auto text = error_of([&] {
        (world.rank() == 1 ? odd : usual)(mesh);
        // A root has sent all it has to, and learns of it here.
        const std::vector<Parts> each{Parts(4, 3)};
        collectives(mesh).all_gather(
            {mesh, 0}, at::ones({3}, at::kChar), 0, each);
      });
      EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(20));
      EXPECT_THAT(
          text,
          AllOf(
              StartsWith("["),
              HasSubstr("] rank " + std::to_string(world.rank())),
              HasSubstr("in group [0, 1, 2, 3]"),
              AnyOf(
                  HasSubstr("it sent "),
                  HasSubstr("it called "),
                  HasSubstr("stopped with this error"),
                  HasSubstr("has left"),
                  HasSubstr("connection is lost"))));
    });
  }
};

TEST_F(EveryCollective, IsToldFromEveryOther) {
  for (const auto& usual : all_collectives()) {
    for (const auto& odd : all_collectives()) {
      if (usual.name == odd.name) continue;
      SCOPED_TRACE(std::string(usual.name) + " and " + odd.name);
      expect_refused(
          [&](const DeviceMesh& m) { usual.call(m, {}); },
          [&](const DeviceMesh& m) { odd.call(m, {}); });
    }
  }
}

TEST_F(EveryCollective, IsToldByReductionTypeSizeAndCause) {
  for (const auto& one : all_collectives()) {
    SCOPED_TRACE(one.name);
    const auto usual = [&](const DeviceMesh& m) { one.call(m, {}); };
    std::vector<Variant> odd;
    if (one.reduces) odd.push_back({.op = ReduceOp::Max});
    // The same number of bytes, of another type.
    if (one.has_dtype) odd.push_back({.dtype = at::kInt});
    if (one.has_dtype) odd.push_back({.width = 5});
    for (const auto& variant : odd) {
      expect_refused(usual, [&](const DeviceMesh& m) { one.call(m, variant); });
    }
    expect_refused(usual, [&](const DeviceMesh& m) {
      const detail::CommCauseGuard cause("aten::item");
      one.call(m, {});
    });
  }
}

// A rank that leaves out a call is one behind, whatever follows.
TEST_F(EveryCollective, IsToldByItsNumber) {
  for (const auto& one : all_collectives()) {
    SCOPED_TRACE(one.name);
    expect_refused(
        [&](const DeviceMesh& m) {
          one.call(m, {});
          one.call(m, {});
        },
        [&](const DeviceMesh& m) { one.call(m, {}); });
  }
}

TEST_F(EveryCollective, WaitsNoLongerThanTheTimeout) {
  const milliseconds timeout(400);
  for (const auto& one : all_collectives()) {
    SCOPED_TRACE(one.name);
    with_each_transport([&](World& world, const DeviceMesh& mesh) {
      world.barrier();
      world.set_timeout(timeout);
      // The root is missing: whoever waits, waits for it.
      if (world.rank() != 0) {
        const auto begin = std::chrono::steady_clock::now();
        const auto text = error_of([&] { one.call(mesh, {}); });
        EXPECT_LT(
            std::chrono::steady_clock::now() - begin, timeout + seconds(1));
        EXPECT_THAT(
            text,
            AllOf(
                StartsWith(
                    "[" + std::string(one.name) + "] rank " +
                    std::to_string(world.rank())),
                HasSubstr("rank 0"),
                AnyOf(HasSubstr("waited"), HasSubstr("lost the connection")),
                HasSubstr("in group [0, 1, 2, 3]")));
      }
    });
  }
}

// Threads with meshes of two device types, as autograd has: their collectives
// have no common order, and need none.
TEST_F(EveryCollective, OfTwoDeviceTypesMayInterleave) {
  with_each_transport([](World& world, const DeviceMesh& cpu) {
    const auto cuda = init_device_mesh("cuda", {4});
    const auto work = [&](const DeviceMesh& mesh, bool slowly) {
      for (int i = 0; i < 20; ++i) {
        if (slowly) std::this_thread::sleep_for(milliseconds(2));
        const auto out = collectives(mesh).all_reduce(
            {mesh, 0}, at::full({3}, i), ReduceOp::Sum);
        EXPECT_TRUE(at::equal(out[0], at::full({3}, 4 * i)));
      }
    };
    // Half of the ranks begin with the one, half with the other.
    const bool first = world.rank() % 2 == 0;
    std::thread other([&] { work(cuda, first); });
    work(cpu, !first);
    other.join();
  });
}

}  // namespace mismatch_test
}  // namespace tessera::testing
