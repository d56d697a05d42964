// Bags of each rank in a table over processes, and at::embedding_bag on one of
// them. Rank 0 prints JSON: milliseconds, fingerprints of results, bytes sent,
// the bandwidth of memory.
//
//   torchrun --standalone --no-python --nproc-per-node 4 bench_embedding_bag
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "embedding_bag/bandwidth.h"
#include "embedding_bag/lookups.h"
#include "embedding_bag/traffic.h"
#include "redistribute/raw_group.h"
#include "tessera/debug.h"
#include "tessera/world.h"

namespace {

using nlohmann::ordered_json;
using tessera::World;
using tessera::bench::BagBatch;
using tessera::bench::BagLookup;
using tessera::bench::BagSize;
using tessera::bench::BagTraffic;
using tessera::bench::BagVariant;
using tessera::bench::RawGroup;

constexpr int64_t kReadBytes = int64_t{256} << 20;

double total(RawGroup& group, double value) {
  auto sum = at::full({1}, value, at::kDouble);
  group.all_reduce(sum);
  return sum.item<double>();
}

// Milliseconds that this rank takes; 0 if it waits. Ranks start together.
double measure(World& world, bool alone, const std::function<void()>& call) {
  world.barrier();
  if (alone && world.rank() != 0) {
    return 0;
  }
  const auto start = std::chrono::steady_clock::now();
  call();
  const std::chrono::duration<double, std::milli> took =
      std::chrono::steady_clock::now() - start;
  return took.count();
}

// Milliseconds until the slowest rank was done, for each measurement.
void take_slowest(RawGroup& group, ordered_json& times) {
  for (auto& variants : times) {
    for (auto& samples : variants) {
      for (auto& sample : samples) {
        sample = group.max(sample.get<double>());
      }
    }
  }
}

at::Tensor forward_only(const BagVariant& variant) {
  const c10::NoGradGuard no_grad;
  return variant.forward();
}

// Of the first pooled rows and of those after one step, over all ranks: what a
// peer must come to as well. All variants of a lookup make the same rows.
ordered_json fingerprints(RawGroup& group, const BagLookup& lookup) {
  ordered_json result;
  for (const auto& variant : lookup.variants) {
    double first = 0;
    double second = 0;
    if (!lookup.alone || group.rank() == 0) {
      variant.restore();
      first = tessera::bench::fingerprint(forward_only(variant));
      variant.step();
      second = tessera::bench::fingerprint(forward_only(variant));
    }
    result[variant.name] = {total(group, first), total(group, second)};
  }
  return result;
}

// What all ranks send together, counted and by formula. Exchanges that are not
// named take the cheaper of "Pooled" and "Rows".
BagTraffic formula(
    RawGroup& group,
    const BagBatch& batch,
    const std::string& lookup,
    const std::string& variant) {
  const auto sum = [&](const BagTraffic& mine) {
    return BagTraffic{
        static_cast<int64_t>(total(group, static_cast<double>(mine.forward))),
        static_cast<int64_t>(total(group, static_cast<double>(mine.backward)))};
  };
  if (lookup.find("column-wise") != std::string::npos) {
    return sum(columns_traffic(batch));
  }
  const auto mode = lookup.substr(lookup.rfind(' ') + 1);
  if (variant.ends_with("Gather")) {
    return sum(gather_traffic(batch, mode));
  }
  const auto pooled = sum(pooled_traffic(batch, mode));
  const auto rows = sum(rows_traffic(batch));
  if (variant.ends_with("Pooled")) {
    return pooled;
  }
  if (variant.ends_with("Rows")) {
    return rows;
  }
  return pooled.forward < rows.forward ? pooled : rows;
}

ordered_json sent_bytes(
    RawGroup& group, const std::vector<BagLookup>& lookups, BagSize size) {
  ordered_json result;
  for (const std::string kind : {"uniform", "zipf"}) {
    BagBatch batch{{}, size, group.rank()};
    for (int64_t r = 0; r < group.size(); ++r) {
      batch.indices.push_back(tessera::bench::bag_indices(size, kind, r));
    }
    for (const auto& lookup : lookups) {
      if (lookup.name.rfind(kind, 0) != 0) {
        continue;
      }
      for (const auto& variant : lookup.variants) {
        const auto expected = formula(group, batch, lookup.name, variant.name);
        tessera::CommDebugMode comm;
        forward_only(variant);
        const auto forward = static_cast<double>(comm.get_total_bytes());
        comm.reset();
        variant.step();
        const auto step = static_cast<double>(comm.get_total_bytes());
        result[lookup.name + ": forward"][variant.name] = {
            {"counted", static_cast<int64_t>(total(group, forward))},
            {"formula", expected.forward}};
        result[lookup.name + ": step"][variant.name] = {
            {"counted", static_cast<int64_t>(total(group, step))},
            {"formula", expected.forward + expected.backward}};
      }
    }
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Bags in a sharded table, and on one process");
  BagSize size{1'000'000, 64, 2'048, 20};
  int rounds = 5;
  app.add_option("--rows", size.rows, "Rows of the table");
  app.add_option("--columns", size.columns, "Columns of the table");
  app.add_option("--bags", size.bags, "Bags of each rank");
  app.add_option("--entries", size.entries, "Entries of each bag");
  std::string only;
  std::string variant;
  app.add_option("--rounds", rounds, "Measurements of each variant");
  app.add_option("--only", only, "Lookups whose name has this in it");
  app.add_option("--variant", variant, "Only the variant of this name");
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  auto world = World::from_environment();
  RawGroup group;
  const auto left_out = [&](const BagLookup& lookup) {
    return lookup.name.find(only) == std::string::npos;
  };
  auto sharded =
      tessera::bench::sharded_lookups(size, group.rank(), group.size());
  std::erase_if(sharded, left_out);
  for (auto& lookup : sharded) {
    std::erase_if(lookup.variants, [&](const BagVariant& run) {
      return !variant.empty() && run.name != variant;
    });
  }
  auto lookups = sharded;
  for (auto& plain : tessera::bench::plain_lookups(size, group.rank())) {
    if (!left_out(plain)) {
      lookups.push_back(std::move(plain));
    }
  }
  tessera::bench::MemoryReader memory(group.rank() == 0 ? kReadBytes : 64);

  ordered_json result;
  for (const auto& lookup : lookups) {
    result["fingerprints"][lookup.name] = fingerprints(group, lookup);
  }
  double bandwidth = 0;
  const auto read_memory = [&] {
    measure(world, true, [&] { bandwidth = memory.gigabytes_per_second(); });
  };
  // Calls of one process begin with cold caches: one that follows a dense
  // gradient would be compared with one that finds the rows of the call before.
  const auto timed = [&](const BagLookup& lookup,
                         const std::function<void()>& call) {
    if (lookup.alone) {
      read_memory();
    }
    return measure(world, lookup.alone, call);
  };
  // Round by round over all variants, so that a busy moment hits each alike.
  for (int round = 0; round < rounds; ++round) {
    for (const auto& lookup : lookups) {
      for (const auto& variant : lookup.variants) {
        result["times"][lookup.name + ": forward"][variant.name].push_back(
            timed(lookup, [&] { forward_only(variant); }));
        result["times"][lookup.name + ": step"][variant.name].push_back(
            timed(lookup, variant.step));
      }
    }
    read_memory();
    result["read GB/s"].push_back(bandwidth);
  }
  take_slowest(group, result["times"]);
  result["bytes"] = sent_bytes(group, sharded, size);
  group.barrier();
  if (world.rank() == 0) {
    std::cout << result.dump(1) << "\n";
  }
  return 0;
}
