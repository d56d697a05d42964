// What the flight recorder adds to a small collective. Times both in one run:
//
//   torchrun --standalone --no-python --nproc-per-node 4 \
//     build/bench/benchmarks/bench_flight_recorder
//
// and counts the instructions of a record under callgrind, without a launcher:
//
//   valgrind --tool=callgrind --instr-atstart=no \
//     build/bench/benchmarks/bench_flight_recorder --count 1000
#include <ATen/ops/ones.h>
#include <tessera/mesh.h>
#include <tessera/world.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>

#include "callgrind/marks.h"
#include "comm/collectives.h"
#include "comm/flight_recorder.h"

namespace {

using namespace tessera;
using Clock = std::chrono::steady_clock;

// Nanoseconds that a call takes, at best.
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

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("The flight recorder beside a small collective");
  int64_t count = 0;
  app.add_option(
      "--count", count, "only make so many records, for callgrind to count");
  CLI11_PARSE(app, argc, argv);

  const auto group = detail::new_flight_group("cost [0]", {0});
  const auto now = Clock::now();
  // The time of its begin is known to a collective anyway.
  const auto record = [&] {
    const detail::FlightScope scope(
        {group, 1, "all_reduce", 24, "aten::sum", now});
  };
  if (count > 0) {
    callgrind_begin();
    for (int64_t i = 0; i < count; ++i) record();
    callgrind_end("record");
    return 0;
  }
  const World world = World::from_environment(/*otherwise_simulate=*/4);
  const auto mesh = init_device_mesh("cpu", {4});
  const detail::Shards shards(
      mesh.local_positions().size(), at::ones({6}, at::kFloat));
  auto& comm = detail::collectives(mesh);
  const double collective =
      least_ns(200, [&] { comm.all_reduce({mesh, 0}, shards, ReduceOp::Sum); });
  const double alone = least_ns(10000, record);
  if (world.rank() == 0) {
    std::cout << "an all_reduce of 24 bytes takes " << collective
              << " ns, of which a record is " << alone << " ns ("
              << 100 * alone / collective << "%)\n";
  }
  return 0;
}
