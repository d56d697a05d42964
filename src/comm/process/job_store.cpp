#include "comm/process/job_store.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "comm/errors.h"
#include "comm/fork.h"
#include "comm/process/bounded.h"
#include "comm/transport/socket_connect.h"

namespace tessera::detail {

namespace {

using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// How often those who wait for a store look again.
constexpr milliseconds kLookAgain{20};
constexpr milliseconds kOneLook{1000};
// After an answer that is none of a store.
constexpr milliseconds kLongPause{1000};

// Whose store it is.
constexpr const char* kOwner = "tessera/owner";

std::string job_key(const Launch& launch) {
  return "tessera/job/" + launch.job;
}

std::vector<uint16_t> ports_of(const Launch& launch) {
  std::vector<uint16_t> ports{launch.port};
  ports.insert(
      ports.end(), launch.other_ports.begin(), launch.other_ports.end());
  return ports;
}

c10d::TCPStoreOptions store_options(uint16_t port, Deadline until) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = c10d_timeout(std::max(time_left(until), milliseconds(1)));
  return options;
}

void set(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

// --- the rank that serves ---

// By address and port.
using Served = std::map<std::string, StorePtr>;

Served& served_here() {
  static PerProcess<Served> all;
  return all.get();
}

// Nothing where the port is taken: by a store of this process, or c10d says why
// it cannot be had.
std::optional<Listener> listen_at(const std::string& address, uint16_t port) {
  try {
    return Listener(address, port);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

struct ServedStore {
  StorePtr store;
  int file = -1;  // where it listens, if we have opened that
};

ServedStore serve_at(const Launch& launch, uint16_t port, Deadline until) {
  auto options = store_options(port, until);
  options.isServer = true;
  // A store that this process serves already is used again.
  options.multiTenant = true;
  ServedStore made;
  // Reached only where the ranks look for it.
  if (auto listener = listen_at(loopback_of(launch.address), port)) {
    options.masterListenFd = made.file = listener->release();
  }
  made.store = c10::make_intrusive<c10d::TCPStore>(launch.address, options);
  set(*made.store, job_key(launch), "1");
  set(*made.store, kOwner, launch.job);
  return made;
}

StorePtr serve(const Launch& launch, Deadline until) {
  auto& served = served_here();
  const auto ports = ports_of(launch);
  const auto where = [&](uint16_t port) {
    return launch.address + ":" + std::to_string(port);
  };
  const auto known = std::find_if(ports.begin(), ports.end(), [&](auto port) {
    return served.contains(where(port));
  });
  const auto first = known == ports.end() ? ports.begin() : known;
  for (auto port = first;; ++port) {
    try {
      const auto made = within<ServedStore>(
          after(until, kOneLook), [launch, port = *port, until] {
            return serve_at(launch, port, until);
          });
      // From here on it lives as long as the process.
      if (made.file >= 0) hide_from_children(made.file);
      served[where(*port)] = made.store;
      return made.store;
    } catch (const std::exception&) {
      if (port + 1 == ports.end() || Clock::now() >= until) throw;
    }
  }
}

// --- the others ---

// What the threads that look, one at each port, share.
struct Search {
  std::mutex mutex;
  std::condition_variable changed;
  StorePtr found;
  std::map<uint16_t, std::string> why_not;
  std::atomic<bool> over = false;

  void note(uint16_t port, const std::string& text) {
    const std::lock_guard lock(mutex);
    why_not[port] = text;
  }

  // "at port 4711 is the store of another job; ..."
  std::string reasons() const {
    std::map<std::string, std::string> ports;
    for (const auto& [port, why] : why_not) {
      auto& list = ports[why];
      list += (list.empty() ? "" : ", ") + std::to_string(port);
    }
    std::string text = ports.empty() ? "there was no time to look" : "";
    for (const auto& [why, list] : ports) {
      text += (text.empty() ? "" : "; ") + why;
      if (ports.size() > 1) text += " (port " + list + ")";
    }
    return text;
  }
};

// Waits at a store for rank 0 of our job. Null if the search is over.
StorePtr wait_for_job(
    Search& search, const Launch& launch, uint16_t port, Deadline until) {
  StorePtr store = c10::make_intrusive<c10d::TCPStore>(
      launch.address, store_options(port, until));
  while (!search.over && Clock::now() < until) {
    if (store->check({job_key(launch)})) return store;
    if (!store->check({kOwner})) {
      search.note(port, "rank 0 did not come");
    } else {
      const auto owner = store->get(kOwner);
      search.note(
          port,
          c10::str(
              "the store there is that of another job ('",
              std::string(owner.begin(), owner.end()),
              "', not '",
              launch.job,
              "')"));
    }
    std::this_thread::sleep_for(kLookAgain);
  }
  return {};
}

void look_at(
    Search& search, const Launch& launch, uint16_t port, Deadline until) {
  while (!search.over && Clock::now() < until) {
    auto pause = kLookAgain;
    try {
      if (can_connect(
              launch.address, port, std::min(until, from_now(kOneLook)))) {
        search.note(port, "what listens there does not answer");
        auto store = wait_for_job(search, launch, port, until);
        if (!store) return;
        const std::lock_guard lock(search.mutex);
        search.found = std::move(store);
        search.over = true;
        search.changed.notify_all();
        return;
      }
      search.note(port, "nothing listens there");
    } catch (const std::exception& error) {
      search.note(port, cause_of(error));
      pause = kLongPause;
    }
    std::this_thread::sleep_for(pause);
  }
}

StorePtr find(const Launch& launch, Deadline until) {
  const auto search = std::make_shared<Search>();
  for (const uint16_t port : ports_of(launch)) {
    // Left alone where it asks a store that does not answer.
    std::thread([=] { look_at(*search, launch, port, until); }).detach();
  }
  std::unique_lock lock(search->mutex);
  search->changed.wait_until(lock, until, [&] { return bool(search->found); });
  search->over = true;
  TORCH_CHECK(search->found, search->reasons());
  return search->found;
}

}  // namespace

StorePtr open_job_store(const Launch& launch, Deadline until) {
  if (launch.rank == 0 && !launch.served_by_launcher) {
    return serve(launch, until);
  }
  if (launch.rank != 0) return find(launch, until);
  // Its launcher's, where the others wait for a word from rank 0.
  return within<StorePtr>(after(until, kOneLook), [launch, until] {
    const StorePtr store = c10::make_intrusive<c10d::TCPStore>(
        launch.address, store_options(launch.port, until));
    set(*store, job_key(launch), "1");
    return store;
  });
}

}  // namespace tessera::detail
