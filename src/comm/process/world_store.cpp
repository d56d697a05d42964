#include "comm/process/world_store.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "comm/errors.h"
#include "comm/fork.h"
#include "comm/process/bounded.h"
#include "comm/process/job_store.h"
#include "comm/process/rendezvous.h"

namespace tessera::detail {

namespace {

using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Worlds are made one at a time.
std::mutex& one_at_a_time() {
  static PerProcess<std::mutex> mutex;
  return mutex.get();
}

// Where the ranks of a world of this size and job meet.
Meeting meet_world(
    const Launch& launch, const StorePtr& base, milliseconds timeout) {
  const auto size = launch.size;
  const auto rank = static_cast<size_t>(launch.rank);
  const StorePtr store = c10::make_intrusive<c10d::PrefixStore>(
      "tessera/" + std::to_string(size) + "/" + launch.job, base);
  return within<Meeting>(until_given_up(timeout), [=] {
    std::vector<int64_t> all(size);
    std::iota(all.begin(), all.end(), 0);
    return meet(store, all, rank, "", timeout);
  });
}

std::string describe(const Launch& launch, const char* caller) {
  return c10::str(
      "[",
      caller,
      "] rank ",
      launch.rank,
      " of ",
      launch.size,
      " could not meet the others ");
}

}  // namespace

StorePtr meet_at_address(
    const Launch& launch, milliseconds timeout, const char* caller) {
  const std::lock_guard lock(one_at_a_time());
  auto where = launch.address + ":" + std::to_string(launch.port);
  if (!launch.other_ports.empty()) {
    where += c10::str(" (or ports ", launch.other_ports, ")");
  }
  const auto until = from_now(timeout);
  Meeting meeting;
  try {
    const StorePtr base = open_job_store(launch, until);
    base->setTimeout(c10d_timeout(timeout));
    meeting = meet_world(launch, base, time_left(until));
  } catch (const std::exception& error) {
    TORCH_CHECK(
        false,
        describe(launch, caller),
        "at ",
        where,
        " within ",
        timeout.count(),
        " ms: ",
        cause_of(error),
        ". Check that rank 0 is running and reachable there and that its port "
        "is free");
  }
  TORCH_CHECK(
      meeting.missing.empty(),
      describe(launch, caller),
      "at ",
      where,
      ": ",
      name_ranks(meeting.missing),
      " did not come within ",
      timeout.count(),
      " ms. Check that every rank was started with this address and a world "
      "size of ",
      launch.size,
      ", or give WorldOptions a longer timeout");
  return meeting.store;
}

StorePtr meet_in_store(
    Launch& launch, const StorePtr& given, milliseconds timeout) {
  constexpr const char* kCaller = "World::connect";
  const std::lock_guard lock(one_at_a_time());
  const auto until = from_now(timeout);
  Meeting meeting;
  try {
    // A connection of our own: who waits in a store blocks its other users.
    const auto base = within<StorePtr>(
        until_given_up(timeout), [given] { return given->clone(); });
    base->setTimeout(c10d_timeout(timeout));
    auto* under = base.get();
    if (auto* prefix = dynamic_cast<c10d::PrefixStore*>(under)) {
      under = prefix->getUnderlyingNonPrefixStore().get();
    }
    if (const auto* served = dynamic_cast<const c10d::TCPStore*>(under)) {
      launch.address = served->getHost();
    }
    meeting = meet_world(launch, base, time_left(until));
  } catch (const std::exception& error) {
    TORCH_CHECK(
        false,
        describe(launch, kCaller),
        "in the store: ",
        cause_of(error),
        ". Check that the process that serves it is running");
  }
  TORCH_CHECK(
      meeting.missing.empty(),
      describe(launch, kCaller),
      "in the store: ",
      name_ranks(meeting.missing),
      " did not come within ",
      timeout.count(),
      " ms. Check that every rank was given the same store and a world size "
      "of ",
      launch.size,
      ", or give WorldOptions a longer timeout");
  // Whoever made the store serves it.
  launch.served_by_launcher = true;
  return meeting.store;
}

}  // namespace tessera::detail
