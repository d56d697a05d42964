// Lookups in a large row-wise table over processes, beside a hand-written one
// and the raw collectives in the same processes. Rank 0 prints JSON:
// milliseconds, bytes of memory, bytes sent, nanoseconds of a tiny lookup.
//
//   torchrun --standalone --no-python --nproc-per-node 4 bench_embedding
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "embedding/lookups.h"
#include "embedding/peak_memory.h"
#include "embedding/tiny.h"
#include "embedding/traffic.h"
#include "tessera/debug.h"
#include "tessera/world.h"

namespace {

using nlohmann::ordered_json;
using tessera::bench::Lookup;
using tessera::bench::RawGroup;
using tessera::bench::Variant;

// Milliseconds until the slowest rank is done.
double measure(RawGroup& group, const Variant& variant) {
  group.barrier();
  const auto start = std::chrono::steady_clock::now();
  const auto result = variant.run();
  const std::chrono::duration<double, std::milli> took =
      std::chrono::steady_clock::now() - start;
  return group.max(took.count());
}

at::Tensor dense(const at::Tensor& tensor) {
  return tensor.is_sparse() ? tensor.to_dense() : tensor;
}

// All variants make the same tensor, or the comparison means nothing.
void check_equal(const Lookup& lookup) {
  const auto first = dense(lookup.variants[0].run());
  for (const auto& variant : lookup.variants) {
    const auto result = variant.run();
    TORCH_CHECK(
        !result.defined() || at::allclose(dense(result), first, 1e-4, 1e-5),
        "[bench_embedding] ",
        lookup.name,
        ": ",
        variant.name,
        " differs from ",
        lookup.variants[0].name);
  }
}

int64_t total(RawGroup& group, int64_t value) {
  auto sum = at::full({1}, value, at::kLong);
  group.all_reduce(sum);
  return sum.item<int64_t>();
}

// What all ranks send together, counted and by formula.
ordered_json sent_bytes(
    RawGroup& group,
    const std::vector<Lookup>& lookups,
    const tessera::bench::TableSize& size) {
  ordered_json result;
  for (const std::string name : {"uniform", "zipf"}) {
    const auto indices =
        name == "zipf"
            ? tessera::bench::zipf_indices(size.rows, size.indices)
            : tessera::bench::uniform_indices(size.rows, size.indices);
    const tessera::bench::Batch batch{
        indices, size.rows, size.columns * 4, group.size(), group.rank()};
    for (const auto& lookup : lookups) {
      const bool both =
          lookup.name == name + ", batch-sharded: forward+backward, dense";
      if (!both && lookup.name != name + ", batch-sharded: forward") {
        continue;
      }
      for (const auto& variant : lookup.variants) {
        if (variant.name != "ours, Gather" &&
            variant.name != "ours, Exchange") {
          continue;
        }
        const auto formula = variant.name == "ours, Gather"
                                 ? tessera::bench::gather_traffic(batch)
                                 : tessera::bench::exchange_traffic(batch);
        tessera::CommDebugMode comm;
        variant.run();
        result[lookup.name][variant.name] = {
            {"counted", total(group, comm.get_total_bytes())},
            {"formula",
             total(group, formula.forward + (both ? formula.backward : 0))}};
      }
    }
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Lookups in a sharded table, beside other variants that do them");
  tessera::bench::TableSize size{1'000'000, 64, 16'384};
  int rounds = 5;
  app.add_option("--rows", size.rows, "Rows of the table");
  app.add_option("--columns", size.columns, "Columns of the table");
  app.add_option("--indices", size.indices, "Indices of all ranks");
  app.add_option("--rounds", rounds, "Measurements of each variant");
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  const auto world = tessera::World::from_environment();
  RawGroup group;
  const auto mesh = tessera::init_device_mesh("cpu", {world.size()});
  const auto lookups = tessera::bench::lookups(mesh, group, size);

  ordered_json result;
  for (const auto& lookup : lookups) {
    check_equal(lookup);
  }
  // Round by round over all variants, so that a busy moment hits each alike.
  for (int round = 0; round < rounds; ++round) {
    for (const auto& lookup : lookups) {
      for (const auto& variant : lookup.variants) {
        result["times"][lookup.name][variant.name].push_back(
            measure(group, variant));
      }
    }
  }
  for (const auto& lookup : lookups) {
    if (lookup.name.find("backward") == std::string::npos) {
      continue;
    }
    for (const auto& variant : lookup.variants) {
      group.barrier();
      result["memory"][lookup.name][variant.name].push_back(
          tessera::bench::peak_memory_of([&] { variant.run(); }));
    }
  }
  result["bytes"] = sent_bytes(group, lookups, size);
  group.barrier();
  const auto tiny = tessera::bench::tiny_times(mesh);
  result["tiny"] = {
      {"plain", {tiny.plain}},
      {"row-wise", {tiny.row_wise}},
      {"column-wise", {tiny.column_wise}}};
  group.barrier();
  if (world.rank() == 0) {
    std::cout << result.dump(1) << "\n";
  }
  return 0;
}
