// What an op costs when all ranks live in this process: n ranks, each with a
// shard of 4x4 floats, beside n plain calls on the same shards.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>

#include <string>

#include "tessera/dtensor.h"
#include "tessera/world.h"

namespace {

using Op = at::Tensor (*)(const at::Tensor&);
struct NamedOp {
  const char* name;
  Op op;
};

const NamedOp kOps[] = {
    {"add", [](const at::Tensor& x) { return at::add(x, x); }},
    {"relu", [](const at::Tensor& x) { return at::relu(x); }},
    {"view", [](const at::Tensor& x) { return x.view({-1}); }},
};

std::vector<at::Tensor> shards(int64_t ranks) {
  std::vector<at::Tensor> parts;
  for (int64_t r = 0; r < ranks; ++r) {
    parts.push_back(at::rand({4, 4}));
  }
  return parts;
}

// Results are kept until all ranks have theirs, as a distributed tensor does.
void plain(benchmark::State& state, Op op, int64_t ranks) {
  const auto inputs = shards(ranks);
  // As in a program without distributed tensors, whose ops leave it switched
  // on.
  c10::AutogradState::get_tls_state().set_view_replay_enabled(false);
  for (auto iteration : state) {
    static_cast<void>(iteration);
    c10::SmallVector<at::Tensor, 1> results;
    for (const auto& input : inputs) {
      results.push_back(op(input));
    }
    benchmark::DoNotOptimize(results);
  }
}

void ours(benchmark::State& state, Op op, int64_t ranks) {
  const auto world = tessera::World::simulate(ranks);
  const auto mesh = tessera::init_device_mesh("cpu", {ranks});
  const auto x =
      tessera::DTensor::from_local(shards(ranks), mesh, {tessera::Shard(0)});
  op(x);
  for (auto iteration : state) {
    static_cast<void>(iteration);
    benchmark::DoNotOptimize(op(x));
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  at::set_num_threads(1);
  c10::GradMode::set_enabled(false);
  for (const auto& [name, op] : kOps) {
    for (const int64_t ranks : {1, 4, 16, 64}) {
      const std::string prefix = name + ("/" + std::to_string(ranks));
      benchmark::RegisterBenchmark(
          (prefix + "/plain").c_str(),
          [op = op, ranks](benchmark::State& s) { plain(s, op, ranks); });
      benchmark::RegisterBenchmark(
          (prefix + "/ours").c_str(),
          [op = op, ranks](benchmark::State& s) { ours(s, op, ranks); });
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
