#include "comm/rendezvous.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>

#include "comm/errors.h"

namespace tessera::detail {

namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

struct Meeting {
  // Served from here, for as long as the process lives: a rank that comes early
  // for the next world at this address must not find the last one's store.
  StorePtr served;
  int64_t worlds = 0;
};

// What this process knows of each address it has met at.
Meeting& meeting(const std::string& where) {
  static auto* meetings = new std::map<std::string, Meeting>;
  return (*meetings)[where];
}

StorePtr open_store(const Launch& launch, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = launch.port;
  options.isServer = launch.rank == 0 && !launch.served_by_launcher;
  options.waitWorkers = false;
  options.timeout = timeout;
  options.multiTenant = true;
  return c10::make_intrusive<c10d::TCPStore>(launch.address, options);
}

std::string key_of(const std::string& name, int64_t rank) {
  return name + "/" + std::to_string(rank);
}

}  // namespace

std::string name_ranks(const std::vector<int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

void put_text(
    c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

std::string get_text(c10d::Store& store, const std::string& key) {
  const auto bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

std::vector<int64_t> meet(
    c10d::Store& store,
    const std::string& name,
    int64_t rank,
    const std::vector<int64_t>& ranks,
    std::chrono::milliseconds timeout) {
  store.set(key_of(name, rank), std::vector<uint8_t>{1});
  std::vector<std::string> keys;
  keys.reserve(ranks.size());
  for (const int64_t other : ranks) keys.push_back(key_of(name, other));
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  // Now and then a store does not wake one that waits: look again in between.
  constexpr std::chrono::milliseconds kPatience{5000};
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    try {
      // Zero would mean for ever.
      store.wait(
          keys, std::clamp(left, std::chrono::milliseconds(1), kPatience));
      return {};
    } catch (const std::exception&) {
      std::vector<int64_t> missing;
      for (size_t i = 0; i < ranks.size(); ++i) {
        if (!store.check({keys[i]})) missing.push_back(ranks[i]);
      }
      if (missing.empty() || left <= kPatience) return missing;
    }
  }
}

StorePtr meet_world(
    const Launch& launch,
    std::chrono::milliseconds timeout,
    const char* caller) {
  // One at a time: worlds at an address are numbered in the order in which they
  // are made, which must be the same on every rank.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto where = launch.address + ":" + std::to_string(launch.port);
  const auto describe = [&] {
    return c10::str(
        "[",
        caller,
        "] rank ",
        launch.rank,
        " of ",
        launch.size,
        " could not meet the others at ",
        where);
  };
  std::vector<int64_t> missing;
  StorePtr store;
  try {
    auto& here = meeting(where);
    StorePtr base = open_store(launch, timeout);
    if (launch.rank == 0 && !launch.served_by_launcher) here.served = base;
    store = c10::make_intrusive<c10d::PrefixStore>(
        "tessera/" + launch.attempt + std::to_string(here.worlds++),
        std::move(base));
    std::vector<int64_t> all(launch.size);
    std::iota(all.begin(), all.end(), 0);
    missing = meet(*store, "world", launch.rank, all, timeout);
  } catch (const std::exception& error) {
    TORCH_CHECK(
        false,
        describe(),
        " within ",
        timeout.count(),
        " ms: ",
        cause_of(error),
        ". Check that rank 0 is running and reachable there and that its port "
        "is free");
  }
  TORCH_CHECK(
      missing.empty(),
      describe(),
      ": ",
      name_ranks(missing),
      " did not come within ",
      timeout.count(),
      " ms. Check that every rank was started with this address and a world "
      "size of ",
      launch.size,
      ", or give WorldOptions a longer timeout");
  return store;
}

}  // namespace tessera::detail
