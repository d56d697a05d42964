// The one file that needs Gloo's headers; no_gloo.cpp stands in without them.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>
#include <mutex>

#include "comm/backend.h"

namespace tessera::detail {

namespace {

using Device = std::shared_ptr<::gloo::transport::Device>;
using c10d::ProcessGroupGloo;

Device make_device(bool one_host) {
  if (const char* name = std::getenv("GLOO_SOCKET_IFNAME")) {
    return ProcessGroupGloo::createDeviceForInterface(name);
  }
  // Without this Gloo asks for the address of the machine's name, which need
  // not resolve, or may lead through a firewall.
  if (one_host) return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  return ProcessGroupGloo::createDefaultDevice();
}

// A device is a thread and a listening socket: all groups share one.
Device shared_device(bool one_host) {
  static std::mutex mutex;
  static std::weak_ptr<::gloo::transport::Device> devices[2];
  const std::lock_guard lock(mutex);
  auto device = devices[one_host ? 1 : 0].lock();
  if (!device) {
    device = make_device(one_host);
    devices[one_host ? 1 : 0] = device;
  }
  return device;
}

}  // namespace

bool has_gloo() { return true; }

GroupBackend make_gloo(const GroupRequest& request) {
  auto options = ProcessGroupGloo::Options::create(request.timeout);
  options->devices.push_back(shared_device(request.one_host));
  // Threads for collectives of Gloo's own; we send messages only.
  options->threads = 1;
  for (const int64_t rank : request.ranks) {
    options->global_ranks_in_group.push_back(static_cast<uint64_t>(rank));
  }
  return {
      c10::make_intrusive<ProcessGroupGloo>(
          request.store,
          static_cast<int>(request.coordinate),
          static_cast<int>(request.ranks.size()),
          options),
      BackendTraits{
          /*host_memory_only=*/true,
          /*small_bytes=*/int64_t{64} << 10,
          /*block_bytes=*/int64_t{4} << 20}};
}

}  // namespace tessera::detail
