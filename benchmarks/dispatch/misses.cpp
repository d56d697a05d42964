#include "dispatch/misses.h"

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include <chrono>
#include <string>

#include "tessera/dtensor.h"
#include "tessera/world.h"

namespace tessera::bench {

namespace {

using Clock = std::chrono::steady_clock;

// A shard's shape that no call before has had, with few elements. Sizes come
// from a counter that all benchmarks share: what one has seen is no news to
// another either.
Sizes new_shape() {
  static int64_t counter = 0;
  constexpr int64_t kBase = 40;
  const int64_t n = counter++;
  TORCH_CHECK(
      n < kBase * kBase * kBase, "out of new shapes: run for less long");
  return {n % kBase + 1, n / kBase % kBase + 1, n / kBase / kBase + 1};
}

using Op = at::Tensor (*)(const DTensor&);
struct NamedOp {
  const char* name;
  Op op;
};

const NamedOp kOps[] = {
    {"add", [](const DTensor& x) { return at::add(x, x); }},
    {"relu", [](const DTensor& x) { return at::relu(x); }},
    {"sum", [](const DTensor& x) { return x.sum(); }},
    {"transpose", [](const DTensor& x) { return x.transpose(0, 1); }},
    {"bmm", [](const DTensor& x) { return at::bmm(x, x.transpose(1, 2)); }},
};

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

void measure(benchmark::State& state, Op op, int64_t ranks) {
  const auto world = World::simulate(ranks);
  const auto mesh = init_device_mesh("cpu", {ranks});
  double hits = 0;
  for (auto iteration : state) {
    static_cast<void>(iteration);
    const auto x = DTensor::from_local(at::ones(new_shape()), mesh, {Shard(0)});
    const auto start = Clock::now();
    const auto first = op(x);
    const auto after_miss = Clock::now();
    const auto second = op(x);
    hits += seconds(Clock::now() - after_miss);
    state.SetIterationTime(seconds(after_miss - start));
  }
  state.counters["hit_ns"] =
      benchmark::Counter(hits * 1e9, benchmark::Counter::kAvgIterations);
}

}  // namespace

void register_misses() {
  for (const auto& [name, op] : kOps) {
    for (const int64_t ranks : {1, 4}) {
      benchmark::RegisterBenchmark(
          ("miss/" + std::string(name) + "/" + std::to_string(ranks)).c_str(),
          [op = op, ranks](benchmark::State& state) {
            measure(state, op, ranks);
          })
          ->UseManualTime()
          ->Iterations(100);
    }
  }
}

}  // namespace tessera::bench
