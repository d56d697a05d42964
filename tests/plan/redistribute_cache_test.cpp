#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "plan/redistribute_plan.h"
#include "tests/core/scoped_process_context.h"

namespace tessera::detail {
namespace redistribute_cache_test {

TEST(CachedRedistribution, PlannedOnce) {
  const ScopedProcessContext world(4);
  const DeviceMesh mesh = init_device_mesh("cpu", {2, 2});
  const Placements from{Shard(0), Replicate()};
  const Placements to{Shard(1), Shard(0)};
  const SpecPtr spec = Spec::make(mesh, from, {8, 4}, c10::kFloat);
  const auto first = cached_redistribution(*spec, to);
  EXPECT_EQ(first->str(), plan_redistribution(mesh, {8, 4}, 4, from, to).str());
  EXPECT_EQ(first, cached_redistribution(*spec, to));
  // Strides and a dtype of the same width make no other plan.
  const SpecPtr other = Spec::make(mesh, from, {8, 4}, Sizes{1, 8}, c10::kInt);
  EXPECT_EQ(first, cached_redistribution(*other, to));
  // Each part of the key counts.
  const SpecPtr wider = Spec::make(mesh, from, {8, 4}, c10::kDouble);
  const SpecPtr longer = Spec::make(mesh, from, {16, 4}, c10::kFloat);
  EXPECT_NE(first, cached_redistribution(*wider, to));
  EXPECT_NE(first, cached_redistribution(*longer, to));
  EXPECT_NE(first, cached_redistribution(*spec->with(to), from));
  EXPECT_GT(
      cached_redistribution(*wider, to)->cost,
      cached_redistribution(*spec, to)->cost);
}

TEST(CachedRedistribution, CostAlone) {
  const ScopedProcessContext world(4);
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{4}, std::vector<int64_t>{2, 2}}) {
    const DeviceMesh mesh = init_device_mesh("cpu", shape);
    const std::vector<Placement> all{
        Replicate(),
        Shard(0),
        Shard(1),
        Partial("sum"),
        Partial("max"),
        MaskPartial({9, 2}, 0)};
    for (const Placement& from : all) {
      for (const Placement& to : all) {
        Placements before(shape.size(), Replicate());
        Placements after(shape.size(), Replicate());
        before[0] = from;
        after[0] = to;
        const SpecPtr spec = Spec::make(mesh, before, {7, 5}, c10::kHalf);
        if (!can_redistribute(mesh, before, after)) {
          EXPECT_THROW(
              cached_redistribution(*spec, after), c10::NotImplementedError);
          continue;
        }
        EXPECT_EQ(
            redistribution_cost(*spec, after),
            cached_redistribution(*spec, after)->cost)
            << to_string(before) << "->" << to_string(after);
      }
    }
  }
}

TEST(CachedRedistribution, Bounded) {
  const ScopedProcessContext world(4);
  const DeviceMesh mesh = init_device_mesh("cpu", {4});
  const Placements from{Shard(0)};
  const Placements to{Replicate()};
  std::vector<std::weak_ptr<const RedistributePlan>> plans;
  for (int64_t n = 1; n <= 5000; ++n) {
    const SpecPtr spec = Spec::make(mesh, from, {n, 3}, c10::kFloat);
    plans.push_back(cached_redistribution(*spec, to));
    // One that is asked for again and again stays.
    const SpecPtr hot = Spec::make(mesh, from, {1, 3}, c10::kFloat);
    EXPECT_EQ(plans.front().lock(), cached_redistribution(*hot, to));
  }
  size_t alive = 0;
  for (const auto& plan : plans) {
    alive += plan.expired() ? 0 : 1;
  }
  EXPECT_LE(alive, 1024u);
  EXPECT_GE(alive, 512u);
}

TEST(CachedRedistribution, ManyThreads) {
  const ScopedProcessContext world(4);
  const DeviceMesh mesh = init_device_mesh("cpu", {2, 2});
  const Placements from{Shard(0), Shard(0)};
  const Placements to{Replicate(), Shard(1)};
  const std::string expected =
      plan_redistribution(mesh, {8, 4}, 4, from, to).str();
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const SpecPtr spec = Spec::make(mesh, from, {8, 4}, c10::kFloat);
        wrong[t] += cached_redistribution(*spec, to)->str() != expected;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace redistribute_cache_test
}  // namespace tessera::detail
