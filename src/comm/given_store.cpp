#include "comm/given_store.h"

#include <c10/util/Exception.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <numeric>
#include <string>
#include <vector>

#include "comm/errors.h"
#include "comm/rendezvous.h"

namespace tessera::detail {

namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

std::string host_name() {
  std::string name(256, '\0');
  if (gethostname(name.data(), name.size() - 1) != 0) return "";
  name.resize(name.find('\0'));
  return name;
}

std::string host_key(int64_t rank) { return "host/" + std::to_string(rank); }

// Whether all ranks are on one machine. Requires: all have told.
bool on_one_host(c10d::Store& store, int64_t size) {
  const auto own = host_name();
  bool one_host = !own.empty();
  for (int64_t other = 0; other < size; ++other) {
    one_host &= get_text(store, host_key(other)) == own;
  }
  return one_host;
}

}  // namespace

StorePtr meet_in_store(
    Launch& launch, const StorePtr& given, std::chrono::milliseconds timeout) {
  const auto describe = [&] {
    return c10::str(
        "[World::connect] rank ",
        launch.rank,
        " of ",
        launch.size,
        " could not meet the others in the store");
  };
  std::vector<int64_t> missing;
  StorePtr store;
  try {
    // A connection of our own: who waits in a store blocks its other users.
    store = given->clone();
    store->setTimeout(timeout);
    // Each rank counts the worlds that it has made there.
    const auto number =
        store->add("tessera/worlds/" + std::to_string(launch.rank), 1);
    store = c10::make_intrusive<c10d::PrefixStore>(
        "tessera/" + std::to_string(number), std::move(store));
    std::vector<int64_t> all(launch.size);
    std::iota(all.begin(), all.end(), 0);
    put_text(*store, host_key(launch.rank), host_name());
    missing = meet(*store, "world", launch.rank, all, timeout);
    if (missing.empty()) {
      launch.one_host = on_one_host(*store, launch.size);
    }
  } catch (const std::exception& error) {
    TORCH_CHECK(
        false,
        describe(),
        ": ",
        cause_of(error),
        ". Check that the process that serves it is running");
  }
  TORCH_CHECK(
      missing.empty(),
      describe(),
      ": ",
      name_ranks(missing),
      " did not come within ",
      timeout.count(),
      " ms. Check that every rank was given the same store and a world size "
      "of ",
      launch.size,
      ", or give WorldOptions a longer timeout");
  // Whoever made the store serves it.
  launch.served_by_launcher = true;
  return store;
}

}  // namespace tessera::detail
