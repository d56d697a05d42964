// Collectives on a device that fail after the call has returned.
#include "comm/process/watchdog.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "comm/async_errors.h"
#include "comm/process/device_group.h"

namespace tessera::detail {
namespace watchdog_test {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// Waits until the condition holds, for at most ten seconds.
bool comes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 1'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

struct Seen {
  std::atomic<int> given_up{0};
  std::string failure;
};

Watchdog::Watched watched(
    Seen& seen,
    milliseconds timeout,
    std::function<bool()> done,
    std::function<std::string()> failure = [] { return std::string(); }) {
  return {
      &seen,
      Clock::now() + timeout,
      std::move(done),
      std::move(failure),
      [&seen](const std::string& text) {
        seen.failure = text;
        ++seen.given_up;
      }};
}

TEST(Watchdog, GivesUpWhatIsLateAndNothingElse) {
  Seen late;
  Seen done;
  Seen patient;
  auto& dog = Watchdog::instance();
  dog.watch(watched(done, milliseconds(50), [] { return true; }));
  dog.watch(watched(patient, milliseconds(60'000), [] { return false; }));
  const auto begin = Clock::now();
  dog.watch(watched(late, milliseconds(50), [] { return false; }));
  EXPECT_TRUE(comes_true([&] { return late.given_up == 1; }));
  EXPECT_GE(Clock::now() - begin, milliseconds(50));
  EXPECT_EQ(late.failure, "");
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(late.given_up, 1);
  EXPECT_EQ(done.given_up, 0);
  EXPECT_EQ(patient.given_up, 0);
  dog.forget(&patient);
}

TEST(Watchdog, GivesUpWhatFails) {
  Seen seen;
  Watchdog::instance().watch(watched(
      seen,
      milliseconds(60'000),
      [] { return false; },
      [] { return std::string("broken"); }));
  EXPECT_TRUE(comes_true([&] { return seen.given_up == 1; }));
  EXPECT_EQ(seen.failure, "broken");
}

TEST(Watchdog, ForgetsWhoHasGone) {
  auto seen = std::make_unique<Seen>();
  std::atomic<int> asked{0};
  auto& dog = Watchdog::instance();
  dog.watch(watched(*seen, milliseconds(60'000), [&] {
    ++asked;
    return false;
  }));
  EXPECT_TRUE(comes_true([&] { return asked > 0; }));
  dog.forget(seen.get());
  const int before = asked;
  seen.reset();
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(asked, before);
}

// A backend whose collectives never end.
class Stuck final : public c10d::Backend {
 public:
  Stuck() : Backend(0, 1) {}
  const std::string getBackendName() const override { return "stuck"; }
  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& /*tensors*/,
      const c10d::BroadcastOptions& /*options*/) override {
    return {};
  }
  void abort() override { ++aborted; }

  std::atomic<int> aborted{0};
};

std::string raised(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing";
}

TEST(DeviceGroup, ALateCollectiveIsRaisedByTheNextOp) {
  const auto stuck = c10::make_intrusive<Stuck>();
  DeviceGroup group(
      {7},
      0,
      {stuck,
       [] { return [] { return false; }; },
       [] { return std::string(); }});
  const Call call{CollectiveKind::Broadcast, nullptr, -1, milliseconds(50)};
  const auto broadcast = [&] { group.broadcast(call, at::ones({3})); };
  broadcast();  // returns at once
  raise_async_errors();
  EXPECT_TRUE(comes_true([] { return async_error_posted.load(); }));
  EXPECT_THAT(
      raised([] { raise_async_errors(); }),
      HasSubstr("[broadcast] rank 7 waited 50 ms in group [7] (the world), on "
                "its GPU: it was not done in time"));
  raise_async_errors();  // not again
  EXPECT_TRUE(comes_true([&] { return stuck->aborted == 1; }));
  EXPECT_THAT(
      raised(broadcast),
      HasSubstr("[broadcast] rank 7 can no longer use group [7]"));
}

TEST(DeviceGroup, AnErrorOfTheBackendIsNamed) {
  const auto stuck = c10::make_intrusive<Stuck>();
  DeviceGroup group(
      {7},
      0,
      {stuck,
       [] { return [] { return false; }; },
       [] { return std::string("NCCL reports an error of another rank"); }});
  const Call call{CollectiveKind::Broadcast, nullptr, -1, milliseconds(60'000)};
  group.broadcast(call, at::ones({3}));
  EXPECT_TRUE(comes_true([] { return async_error_posted.load(); }));
  EXPECT_THAT(
      raised([] { raise_async_errors(); }),
      HasSubstr("[broadcast] rank 7 failed in group [7] (the world), on its "
                "GPU: NCCL reports an error of another rank"));
}

}  // namespace watchdog_test
}  // namespace tessera::detail
