// A large matrix redistributed over processes, beside c10d's own collectives on
// the same bytes in the same processes. Rank 0 prints milliseconds as JSON.
//
//   torchrun --standalone --no-python --nproc-per-node 4 bench_redistribute
#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <c10/core/GradMode.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "redistribute/moves.h"
#include "tessera/dtensor.h"
#include "tessera/world.h"

namespace {

using tessera::bench::Method;
using tessera::bench::RawGroup;

// Milliseconds until the slowest rank is done.
double measure(RawGroup& group, const Method& method) {
  if (method.prepare) {
    method.prepare();
  }
  group.barrier();
  const auto start = std::chrono::steady_clock::now();
  method.run();
  const std::chrono::duration<double, std::milli> took =
      std::chrono::steady_clock::now() - start;
  return group.max(took.count());
}

// Both make the same tensor, or the comparison means nothing.
void check_equal(
    const std::string& move, const Method& method, const Method& ours) {
  if (method.prepare) {
    method.prepare();
  }
  const auto expected = method.run();
  if (!expected.defined()) {
    return;
  }
  TORCH_CHECK(
      at::allclose(ours.run(), expected, 1e-5, 1e-5),
      "[bench_redistribute] ",
      move,
      " differs from ",
      method.name);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Redistribution over processes, beside the raw collectives");
  int64_t n = 4096;
  int rounds = 10;
  app.add_option("--size", n, "Rows and columns of the matrix");
  app.add_option("--rounds", rounds, "Measurements of each method");
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  c10::GradMode::set_enabled(false);
  const auto world = tessera::World::from_environment();
  RawGroup group;
  const auto mesh = tessera::init_device_mesh("cpu", {world.size()});
  auto moves = tessera::bench::moves(mesh, group, n);

  nlohmann::ordered_json times;
  for (const auto& move : moves) {
    for (const auto& method : move.raw) {
      check_equal(move.name, method, move.ours);
    }
  }
  // Round by round over all methods, so that a busy moment hits each alike.
  for (int round = 0; round < rounds; ++round) {
    for (const auto& move : moves) {
      auto& of_move = times[move.name];
      of_move["ours"].push_back(measure(group, move.ours));
      for (const auto& method : move.raw) {
        of_move["raw"][method.name].push_back(measure(group, method));
      }
    }
  }
  if (world.rank() == 0) {
    std::cout << times.dump(1) << "\n";
  }
  return 0;
}
