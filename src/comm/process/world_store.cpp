#include "comm/process/world_store.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "comm/errors.h"
#include "comm/fork.h"
#include "comm/process/bounded.h"
#include "comm/process/rendezvous.h"

namespace tessera::detail {

namespace {

using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

struct Stores {
  // Worlds are made one at a time.
  std::mutex mutex;
  // Served from here, for as long as the process lives: a rank that comes early
  // for the next world at this address must not find the last one's store.
  std::map<std::string, StorePtr> served;
};

Stores& stores() {
  static PerProcess<Stores> all;
  return all.get();
}

StorePtr open_store(const Launch& launch, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = launch.port;
  options.isServer = launch.rank == 0 && !launch.served_by_launcher;
  options.waitWorkers = false;
  options.timeout = c10d_timeout(timeout);
  options.multiTenant = true;
  return c10::make_intrusive<c10d::TCPStore>(launch.address, options);
}

Meeting meet_world(
    const Launch& launch, const StorePtr& base, milliseconds timeout) {
  const auto size = launch.size;
  const auto rank = static_cast<size_t>(launch.rank);
  const StorePtr store = c10::make_intrusive<c10d::PrefixStore>(
      "tessera/" + std::to_string(size), base);
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
  auto& all = stores();
  const std::lock_guard lock(all.mutex);
  const auto where = launch.address + ":" + std::to_string(launch.port);
  Meeting meeting;
  try {
    const StorePtr base = open_store(launch, timeout);
    if (launch.rank == 0 && !launch.served_by_launcher)
      all.served[where] = base;
    meeting = meet_world(launch, base, timeout);
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
  auto& all = stores();
  const std::lock_guard lock(all.mutex);
  Meeting meeting;
  try {
    // A connection of our own: who waits in a store blocks its other users.
    const StorePtr base = given->clone();
    base->setTimeout(c10d_timeout(timeout));
    auto* under = base.get();
    if (auto* prefix = dynamic_cast<c10d::PrefixStore*>(under)) {
      under = prefix->getUnderlyingNonPrefixStore().get();
    }
    if (const auto* served = dynamic_cast<const c10d::TCPStore*>(under)) {
      launch.address = served->getHost();
    }
    meeting = meet_world(launch, base, timeout);
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
