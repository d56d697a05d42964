// What the flight recorder costs beside a small collective, in one run.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iostream>

#include "comm/collectives.h"
#include "comm/flight_recorder.h"
#include "testing/worlds.h"

namespace tessera::detail {
namespace flight_cost_test {

using Clock = std::chrono::steady_clock;

// Nanoseconds a call takes, at best.
template <typename Call>
double least_ns(int64_t calls, const Call& call) {
  double least = 1e18;
  for (int64_t round = 0; round < 10; ++round) {
    const auto begin = Clock::now();
    for (int64_t i = 0; i < calls; ++i) call();
    const std::chrono::duration<double, std::nano> taken = Clock::now() - begin;
    least = std::min(least, taken.count() / static_cast<double>(calls));
  }
  return least;
}

TEST(FlightCost, LessThanAHundredthOfASmallCollective) {
  testing::with_mesh({4}, [](const DeviceMesh& mesh) {
    const Shards shards{at::ones({6}, at::kFloat)};
    auto& comm = collectives(mesh);
    const double collective = least_ns(
        200, [&] { comm.all_reduce({mesh, 0}, shards, ReduceOp::Sum); });
    const auto group = new_flight_group("cost [0]", {0});
    const auto now = Clock::now();
    // The time of its begin is known to a collective anyway.
    const double record = least_ns(10000, [&] {
      const FlightScope scope({group, 1, "all_reduce", 24, "aten::sum", now});
    });
    std::cout << "an all_reduce of 24 bytes takes " << collective
              << " ns, a record " << record << " ns\n";
    EXPECT_LT(record, 0.01 * collective);
  });
}

}  // namespace flight_cost_test
}  // namespace tessera::detail
