// The one file that needs Gloo's headers; no_gloo.cpp stands in without them.
#include "comm/process/gloo.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "comm/fork.h"
#include "comm/process/bounded.h"
#include "comm/process/connect.h"

namespace tessera::detail {

namespace {

using Device = std::shared_ptr<::gloo::transport::Device>;
using c10d::ProcessGroupGloo;

Device make_device(bool one_network) {
  if (const char* name = std::getenv("GLOO_SOCKET_IFNAME")) {
    return ProcessGroupGloo::createDeviceForInterface(name);
  }
  // Without this Gloo asks for the address of the machine's name, which need
  // not resolve, or may lead through a firewall.
  if (one_network) {
    return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  }
  return ProcessGroupGloo::createDefaultDevice();
}

// A device is a thread and a listening socket: all groups share one.
struct Devices {
  std::mutex mutex;
  std::weak_ptr<::gloo::transport::Device> made[2];
};

Device shared_device(bool one_network) {
  static PerProcess<Devices> all;
  auto& devices = all.get();
  const std::lock_guard lock(devices.mutex);
  auto& made = devices.made[one_network ? 1 : 0];
  auto device = made.lock();
  if (!device) {
    device = make_device(one_network);
    made = device;
  }
  return device;
}

c10::intrusive_ptr<c10d::Backend> connect_gloo(
    const GroupRequest& request, const Meeting& meeting, bool one_network) {
  auto options =
      ProcessGroupGloo::Options::create(c10d_timeout(request.timeout));
  options->devices.push_back(shared_device(one_network));
  // Threads for collectives of Gloo's own.
  options->threads = 1;
  for (const int64_t rank : request.ranks) {
    options->global_ranks_in_group.push_back(static_cast<uint64_t>(rank));
  }
  auto group = c10::make_intrusive<ProcessGroupGloo>(
      meeting.store,
      static_cast<int>(request.coordinate),
      static_cast<int>(request.ranks.size()),
      options);
  // A rank that has its connections may end the group at once, and Gloo fails
  // on ranks that are still connecting then. So nobody goes on before all are
  // done.
  tell_all(
      meeting,
      "connected",
      static_cast<size_t>(request.coordinate),
      "",
      request.timeout);
  return group;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo(const GroupRequest& request) {
  const auto& host = request.host;
  const auto meeting = meet_group(request, host.boot + " " + host.network);
  const bool one_network = std::all_of(
      meeting.texts.begin(), meeting.texts.end(), [&](const auto& text) {
        return text == meeting.texts[0];
      });
  // Gloo and what follows ask the store, which may not answer.
  return within<c10::intrusive_ptr<c10d::Backend>>(
      until_given_up(request.timeout), [request, meeting, one_network] {
        return connect_gloo(request, meeting, one_network);
      });
}

}  // namespace tessera::detail
