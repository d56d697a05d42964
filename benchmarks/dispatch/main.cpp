// What it costs that a tensor is distributed: each op as a plain call and on a
// tensor of one shard, with a warm cache and no gradients.
//
//   bench_dispatch [--benchmark_...]           time, by Google Benchmark
//   valgrind --tool=callgrind --instr-atstart=no bench_dispatch --count 1000
//                                              instructions
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "callgrind/marks.h"
#include "dispatch/cases.h"
#include "dispatch/misses.h"
#include "tessera/dtensor.h"
#include "tessera/world.h"

namespace {

using tessera::bench::Case;
using Call = std::function<void()>;

constexpr int kWarmUp = 100;

// A plain call is measured as a program without distributed tensors makes it:
// their ops leave a thread in the mode in which autograd records how to replay
// views, and plain views then cost more.
void forget_distributed_ops() {
  c10::AutogradState::get_tls_state().set_view_replay_enabled(false);
}

// Calls f(name, call) for both variants of every case that is asked for; empty
// texts ask for all.
template <class F>
void for_each_variant(
    const std::vector<Case>& cases,
    const std::string& op,
    const std::string& variant,
    F&& f) {
  for (const auto& measured : cases) {
    if (!op.empty() && op != measured.name) {
      continue;
    }
    if (variant != "ours") {
      f(measured.name + "/plain", measured.plain);
    }
    if (variant != "plain") {
      f(measured.name + "/ours", measured.ours);
    }
  }
}

void count_instructions(const std::string& name, const Call& call, int count) {
  forget_distributed_ops();
  for (int i = 0; i < kWarmUp; ++i) {
    call();
  }
  callgrind_begin();
  for (int i = 0; i < count; ++i) {
    call();
  }
  callgrind_end(name.c_str());
}

void register_timing(const std::string& name, const Call& call) {
  benchmark::RegisterBenchmark(name.c_str(), [call](benchmark::State& state) {
    forget_distributed_ops();
    for (auto iteration : state) {
      static_cast<void>(iteration);
      call();
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  CLI::App app("Costs of dispatch; --benchmark_* as for Google Benchmark");
  std::string op;
  std::string variant;
  int count = 0;
  bool list = false;
  app.add_option("--op", op, "Only this op");
  app.add_option("--variant", variant, "Only these calls")
      ->check(CLI::IsMember({"plain", "ours"}));
  app.add_option(
      "--count", count, "Do not time: call so often between callgrind's marks");
  app.add_flag("--list", list, "Print the names and exit");
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  c10::GradMode::set_enabled(false);
  const auto world = tessera::World::simulate(1);
  const auto mesh = tessera::init_device_mesh("cpu", {1});
  const auto cases = tessera::bench::dispatch_cases(mesh);

  if (list || count > 0) {
    for_each_variant(
        cases, op, variant, [&](const std::string& name, const Call& call) {
          if (list) {
            std::cout << name << "\n";
          } else {
            count_instructions(name, call, count);
          }
        });
    return 0;
  }
  for_each_variant(cases, op, variant, register_timing);
  if (op.empty()) {
    tessera::bench::register_misses();
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
