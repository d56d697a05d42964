// Looks after collectives that run on a device while the host goes on: one that
// is not done in time, or whose backend reports an error, is given up.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>

#include "comm/transport/transport.h"

namespace tessera::detail {

class Watchdog {
 public:
  // A collective on its way. The functions are called in the watchdog's thread
  // and must not wait for a collective.
  struct Watched {
    const void* owner;
    Deadline deadline;
    // Whether the device is past it.
    std::function<bool()> done;
    // What the backend says is wrong; "" if nothing.
    std::function<std::string()> failure;
    // Gives the collective up: because of `failure`, or, if that is empty,
    // since the deadline has passed. Called once.
    std::function<void(const std::string& failure)> give_up;
  };

  // The one of this process, whose thread starts with the first call.
  static Watchdog& instance();

  void watch(Watched collective);
  // Forgets all of an owner's collectives. Afterwards none of their functions
  // is called.
  void forget(const void* owner);

 private:
  Watchdog();
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Watched> watched_;
};

}  // namespace tessera::detail
