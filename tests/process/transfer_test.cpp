// How the bytes of collectives travel: in small blocks, and over both
// transports at once. Run as processes.
#include "comm/process/process_collectives.h"
#include "comm/process/world_store.h"
#include "testing/processes.h"
#include "tests/comm/shards.h"

namespace tessera::testing {
namespace transfer_test {

using detail::Collectives;
using detail::ProcessCollectives;
using std::chrono::milliseconds;

class Transfer : public FourProcesses {
 protected:
  // Collectives between the ranks of the test's world, with other options.
  static std::unique_ptr<Collectives> make(
      const ProcessCollectives::Options& options) {
    static const std::atomic<milliseconds> timeout{milliseconds(30000)};
    const auto launch = *detail::read_environment();
    return std::make_unique<ProcessCollectives>(
        launch,
        detail::meet_at_address(launch, timeout, "test"),
        timeout,
        options);
  }

  static void expect_right(Collectives& comm, int64_t rows) {
    const auto mesh = init_device_mesh("cpu", {4});
    const int64_t me = test_world().rank();
    const auto value = [&](int64_t rank) {
      return at::arange(rows * 5, at::kFloat).view({rows, 5}) * (rank + 1);
    };
    const auto total = value(0) * 10;
    const at::Tensor mine = value(me);
    EXPECT_TRUE(
        at::equal(comm.all_reduce({mesh, 0}, mine, ReduceOp::Sum)[0], total));
    // Uneven, with a rank that gets nothing.
    const Parts parts{rows - 2, 0, 1, 1};
    const std::vector<Parts> split{parts};
    EXPECT_TRUE(at::equal(
        comm.reduce_scatter({mesh, 0}, mine, 0, split, ReduceOp::Sum)[0],
        part_of(total, 0, parts, me)));
    const std::vector<Parts> whole{Parts(4, rows)};
    EXPECT_TRUE(at::equal(
        comm.all_gather({mesh, 0}, mine, 0, whole)[0],
        at::cat({value(0), value(1), value(2), value(3)})));
    EXPECT_TRUE(at::equal(comm.broadcast({mesh, 0}, mine)[0], value(0)));
    EXPECT_TRUE(at::equal(
        comm.scatter({mesh, 0}, mine, 0, split)[0],
        part_of(value(0), 0, parts, me)));
    const std::vector<Parts> columns{Parts(4, 5)};
    EXPECT_TRUE(at::equal(
        comm.all_to_all({mesh, 0}, mine, {0, split}, {1, columns})[0],
        part_of(
            at::cat({value(0), value(1), value(2), value(3)}, 1),
            0,
            parts,
            me)));
    comm.agree(mesh, "");
  }
};

// Thousands of blocks to each rank: more than any ring holds, so that a rank
// which only sends would wait for ever.
TEST_F(Transfer, InMoreBlocksThanARingHolds) {
  for (const char* megabytes : {"64", "0"}) {
    with_memory(megabytes, [] {
      ProcessCollectives::Options options;
      options.reduce_sizes = {.small_bytes = 0, .block_bytes = 64};
      const auto comm = make(options);
      for (const int64_t rows : {2, 3, 21'001}) expect_right(*comm, rows);
    });
  }
}

// Two machines of two ranks each: neighbours share memory, the others are
// reached over sockets, in one collective.
TEST_F(Transfer, BetweenTwoMachines) {
  ProcessCollectives::Options options;
  options.reduce_sizes = {.small_bytes = 1000, .block_bytes = 4096};
  options.host.boot += test_world().rank() < 2 ? " one" : " other";
  const auto comm = make(options);
  for (const int64_t rows : {2, 40, 50'001}) expect_right(*comm, rows);
}

// Containers of one machine: no common loopback address.
TEST_F(Transfer, BetweenNetworksOfOneMachine) {
  with_memory("0", [] {
    ProcessCollectives::Options options;
    options.host.network += std::to_string(test_world().rank());
    const auto comm = make(options);
    for (const int64_t rows : {2, 40, 50'001}) expect_right(*comm, rows);
  });
}

}  // namespace transfer_test
}  // namespace tessera::testing
