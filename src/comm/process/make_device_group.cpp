// Whether a group's shards on GPUs go over NCCL: all of its ranks decide alike.
#include <c10/util/Exception.h>

#include <set>

#include "comm/errors.h"
#include "comm/process/bounded.h"
#include "comm/process/device_group.h"
#include "comm/process/rendezvous.h"

namespace tessera::detail {

std::unique_ptr<DeviceGroup> make_device_group(
    const GroupRequest& request, const Call& call, c10::Device device) {
  try {
    const auto meeting = within<Meeting>(
        request.timeout + std::chrono::milliseconds(500),
        [request, gpu = nccl_device_name(device)] {
          return meet(
              request.store,
              request.ranks,
              static_cast<size_t>(request.coordinate),
              gpu,
              request.timeout);
        });
    TORCH_CHECK(
        meeting.missing.empty(), name_ranks(meeting.missing), " did not come");
    const std::set<std::string> gpus(
        meeting.texts.begin(), meeting.texts.end());
    if (gpus.contains("") || gpus.size() < request.ranks.size()) {
      TORCH_WARN_ONCE(
          "[World] ",
          describe_group(request.ranks, call),
          gpus.contains("")
              ? " has ranks without NCCL (torch was built without it, or "
                "TESSERA_NCCL=0 is set)"
              : " has ranks that share a GPU, which NCCL refuses",
          ": tensors on GPUs go through host memory");
      return nullptr;
    }
    return std::make_unique<DeviceGroup>(
        request.ranks,
        request.coordinate,
        make_nccl(meeting.store, request.ranks, request.coordinate, device));
  } catch (const std::exception& error) {
    TORCH_CHECK(
        false,
        "[",
        name(call.collective),
        "] rank ",
        request.ranks[request.coordinate],
        " could not make ",
        describe_group(request.ranks, call),
        " on its GPU: ",
        cause_of(error),
        ". Check that every rank of it is running and calls the same "
        "collectives in the same order");
  }
}

}  // namespace tessera::detail
