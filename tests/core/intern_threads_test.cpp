// Interning under threads: one object a value while anyone holds it, and none
// afterwards.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <thread>
#include <vector>

#include "scoped_process_context.h"
#include "tessera/spec.h"

namespace tessera {
namespace intern_threads_test {

using detail::ScopedProcessContext;

constexpr int kThreads = 4;

void on_threads(const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back(body, t);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// Every thread makes and drops the same few specs, so that finds race with
// last releases.
TEST(InternThreads, MakeRacesWithRelease) {
  const ScopedProcessContext world(4);
  const DeviceMesh mesh = init_device_mesh("cpu", {4});
  const size_t before = live_spec_count();
  std::atomic<int> wrong{0};
  on_threads([&](int) {
    for (int i = 0; i < 20'000; ++i) {
      const int64_t n = i % 3;
      const SpecPtr a = Spec::make(mesh, {Shard(0)}, {n, 4}, at::kFloat);
      const SpecPtr b = Spec::make(mesh, {Shard(0)}, {n, 4}, at::kFloat);
      // While `a` is held, it is the one.
      if (a != b || a->sizes[0] != n || a->mesh != mesh) {
        ++wrong;
      }
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(live_spec_count(), before);
}

// All threads make the same new spec at once, hold it, and compare.
TEST(InternThreads, OneObjectForAll) {
  const ScopedProcessContext world(4);
  const DeviceMesh mesh = init_device_mesh("cpu", {4});
  const size_t before = live_spec_count();
  std::vector<SpecPtr> made(kThreads);
  std::barrier sync(kThreads);
  std::atomic<int> wrong{0};
  on_threads([&](int t) {
    for (int64_t n = 0; n < 2'000; ++n) {
      sync.arrive_and_wait();
      made[t] = Spec::make(mesh, {Partial()}, {n}, at::kFloat);
      sync.arrive_and_wait();
      if (made[t] != made[0]) {
        ++wrong;
      }
      sync.arrive_and_wait();
      made[t].reset();
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(live_spec_count(), before);
}

TEST(InternThreads, Meshes) {
  const ScopedProcessContext world(4);
  std::atomic<int> wrong{0};
  on_threads([&](int) {
    for (int i = 0; i < 2'000; ++i) {
      const DeviceMesh a = init_device_mesh("cpu", {2, 2}, {"x", "y"});
      const DeviceMesh b = init_device_mesh("cpu", {2, 2}, {"x", "y"});
      if (a != b || a["x"] != b["x"] || a["x"] == a["y"]) {
        ++wrong;
      }
    }
  });
  EXPECT_EQ(wrong, 0);
}

}  // namespace intern_threads_test
}  // namespace tessera
